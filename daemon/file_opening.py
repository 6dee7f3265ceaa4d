"""The beginning of a file's run: how it is to be run, what is in it, and its journal.

    new:       options --> survey --> journal, which says both
    resumed:   journal --> engine that it was claimed for --> what its survey found --> a cancel or an expiry before

A failure here does not end the run: the journal is made all the same, and the file is published with the reason.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import ceil
from typing import TypeVar

from daemon.batch_object import BatchError, BatchInfo, BatchStatus
from daemon.dropped_name import forget_dropped_name
from daemon.durable import inode_of, printable
from daemon.ending import EndCause, Ending
from daemon.errors import FileError, InputModifiedError, SettingsError, StorageError
from daemon.file_journal import content_of, create_journal, reopen_journal, why_changed
from daemon.file_options import read_options
from daemon.inbox import ClaimedFile, Content
from daemon.journal import Journal
from daemon.journal_records import Header
from daemon.journal_state import JournalState
from daemon.kept_requests import KeptRequests
from daemon.live_batch import LiveBatch
from daemon.open_file import RunParts
from daemon.outbox import FileNames
from daemon.patience import with_patience
from daemon.request_record import Survey, Url
from daemon.sealing import Failure
from daemon.settings_pipeline import PipelineSettings
from daemon.survey import survey
from daemon.survey_record import survey_from_record

T = TypeVar("T")


class FileOpening:
    """Learns what one claimed file is; what is known so far can be read at any time. Used from the event loop's thread.

    `who` names pipeline and file in the log. An `ending` that begins meanwhile, such as a cancel, is shown at once.
    """

    def __init__(
        self,
        claimed: ClaimedFile,
        names: FileNames,
        who: str,
        settings: PipelineSettings,
        parts: RunParts,
        *,
        ending: Ending,
    ) -> None:
        self.name = claimed.name  # as it was dropped; after a restart the claim knows only the name in work/
        self.created_s = claimed.claimed_s  # Unix time of its claim, perhaps by an earlier run of the daemon
        self.settings = settings
        self.parts = parts  # with the engine that the file was claimed for
        self.survey: Survey | None = None
        self.kept = KeptRequests()  # by the survey
        self._journal: Journal | None = None  # set as soon as it is open, even if the run was cancelled meanwhile
        self._claimed = claimed
        self._names = names
        self._who = who
        self._ending = ending
        self.batch = LiveBatch(names, self._info(), parts.storage)

    @property
    def expires_at(self) -> int | None:
        """Unix time of its deadline; None without one."""
        deadline_s = self.settings.limits.deadline_s
        return None if deadline_s is None else self.created_s + ceil(deadline_s)

    async def open(self) -> tuple[Journal, Failure | None]:
        """Read options and file, and open the journal; return the journal, and the reason if the file cannot be run."""
        failure = None
        journal = await self._with_patience(self._reopen_journal)
        if journal is not None:
            self.settings = PipelineSettings.from_record(journal.state.header.settings, self._names.journal)
            self._keep_engine()
        content = self._content()  # before any of it is read
        if journal is None or journal.state.sealed is None:
            failure = await self._examine(journal)
        if journal is None:
            await self.parts.claim_synced()  # else a power cut could put the file back into the inbox
            journal = await self._with_patience(partial(self._create_journal, content))
        header = journal.state.header
        self.name = header.source_name
        self.created_s = header.created
        self.settings = PipelineSettings.from_record(header.settings, self._names.journal)
        self._take_up_ending(journal.state)
        if journal.state.sealed is None:
            failure = await self._with_patience(partial(self._modified, header)) or failure
        return journal, failure

    def leave(self) -> None:
        """Stop in the middle: what is finished is kept, the rest is for the next start."""
        if self._journal is not None:
            with suppress(StorageError):
                self._journal.sync()
        self.close()

    def close(self) -> None:
        """Give the journal's descriptor back; what is not synced is dropped."""
        if self._journal is not None:
            self._journal.close()

    def _reopen_journal(self) -> Journal | None:
        self._journal = reopen_journal(self._names.journal, self._who, self.parts.storage)
        return self._journal

    def _keep_engine(self) -> None:
        """Go on with the engine that the file was claimed for, if there still is one of that name."""
        if found := self.parts.find_engine(self.settings.engine):
            self.parts = replace(self.parts, engine=found[0], feeder=found[1])

    def _content(self) -> Content:
        """Return what the file was when it was claimed; after a restart, what it is now."""
        if self._claimed.content is not None:
            return self._claimed.content
        try:
            return content_of(self._names.input)
        except OSError:
            return 0, 0  # the survey will fail on it, and say why

    def _modified(self, header: Header) -> Failure | None:
        """Return the failure if the file changed since it was claimed."""
        changed = why_changed(self._names.input, self.name, header)
        if changed is None and self.survey is not None and self.survey.fingerprint != header.fingerprint:
            changed = f"{printable(self.name)} was changed after it was taken"
        return None if changed is None else Failure("input_modified", changed)

    async def _examine(self, journal: Journal | None) -> Failure | None:
        """Learn what is in the file: from its journal if its requests had begun to run, else by reading options and file."""
        started = journal.state.started if journal is not None else None
        if journal is None or started is None or started.survey is None:
            return await self._read_options() or await self._look_through()
        self.survey = survey_from_record(started.survey, journal.state.header.fingerprint)
        return None

    async def _read_options(self) -> Failure | None:
        """Apply the file's own options to its settings; with a mistake in them the file is not run at all."""
        options = self._names.options
        if not self.parts.storage.exists(options):
            return None
        try:
            self.settings = await asyncio.to_thread(read_options, options, self.settings)
        except SettingsError as error:
            return _invalid_options(error)
        self.batch.start_over(self._info())
        return None

    async def _look_through(self) -> Failure | None:
        """Survey the file, and show meanwhile that it is claimed.

        A cancel that comes meanwhile is shown at once. If the run is cancelled, it does not wait for the survey to end.
        """
        template, is_left = self.settings.template, threading.Event()
        look = partial(
            survey,
            self._names.input,
            name=self.name,
            template=template,
            is_cancelled=is_left.is_set,
            keep=self.kept,
        )
        reading = asyncio.create_task(asyncio.to_thread(look))
        noticing = asyncio.create_task(self._ending.is_due.wait())
        try:
            await self.parts.claim_synced()
            await self._with_patience(self.batch.show)
            await asyncio.wait([reading, noticing], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await self._with_patience(self.batch.show)
            self.survey = await reading
        except FileError as error:
            return Failure("invalid_file", str(error), (BatchError("invalid_file", str(error), line=error.line),))
        except InputModifiedError as error:
            return Failure("input_modified", str(error))
        finally:
            noticing.cancel()
            is_left.set()
            reading.cancel()
        return None

    def _create_journal(self, content: Content) -> Journal:
        fingerprint = self.survey.fingerprint if self.survey else ""
        engine = self.parts.engine.config
        storage = self.parts.storage
        journal = self._journal = create_journal(
            self._names.journal,
            self._claimed,
            fingerprint,
            self.settings,
            engine,
            content=content,
            storage=storage,
        )
        with suppress(StorageError):  # if the note stays, the next start removes it
            forget_dropped_name(storage, self.parts.folders.work, self._claimed.stem)
        return journal

    def _take_up_ending(self, state: JournalState) -> None:
        """Go on with a cancel or an expiry that an earlier run had begun."""
        if state.cancelled_at is not None:
            self._ending.begin(EndCause.CANCELLED, state.cancelled_at)
        if state.expired_at is not None:
            self._ending.begin(EndCause.EXPIRED, state.expired_at)
        self.batch.start_over(self._info())
        if state.started is not None and not state.is_cancelled_early:
            self.batch.object.advance(BatchStatus.IN_PROGRESS, state.started.at)
        if state.started is not None:
            self.batch.object.count(state.started.num_requests, state.tally)  # even if nothing more is run
        if self.survey is not None:
            self.batch.object.name_endpoint(self.survey.endpoint)
        if self._ending.cause is EndCause.CANCELLED:
            self.batch.object.advance(BatchStatus.CANCELLING, self._ending.at)

    def _info(self) -> BatchInfo:
        deadline_s = self.settings.limits.deadline_s
        return BatchInfo(
            stem=self._claimed.stem,
            source_name=self.name,
            pipeline=self.parts.pipeline,
            model=self.parts.engine.model,
            endpoint=Url.CHAT.value,
            created_at=self.created_s,
            expires_at=self.expires_at,
            completion_window="unlimited" if deadline_s is None else f"{deadline_s:g}s",
            inode=inode_of(self._claimed.path),
        )

    async def _with_patience(self, action: Callable[[], T]) -> T:
        return await with_patience(action, self._who, self.parts.folders, self.parts.troubles)


def _invalid_options(error: SettingsError) -> Failure:
    errors = [
        BatchError("invalid_options", str(problem), problem.path or None, problem.line) for problem in error.problems
    ]
    num_more = len(errors) - 1
    more = f"; and {num_more} more mistake{'s' if num_more > 1 else ''}" if num_more else ""
    return Failure("invalid_options", errors[0].message + more, tuple(errors))
