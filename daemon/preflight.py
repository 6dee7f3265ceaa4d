"""Has a process of its own check settings of engines before anything that runs is given up for them."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from daemon.child import Child
from daemon.errors import EngineConfigError, EngineEnvironmentError, EngineStartError
from daemon.settings_engine import EngineSettings
from daemon.stall import StallWatch
from pipelines.channel import Peer
from pipelines.config import EngineConfig
from pipelines.core.request import Failed, Progress, Ready

_LOOK_S = 0.2  # between two looks whether it gets on
Tell = Callable[[str], None]  # given what is being done, for people


async def check_engines(engines: Mapping[str, EngineSettings], tell: Tell) -> list[str]:
    """Return what is wrong with these engines' settings, one line each; empty if a start with them has a chance."""
    problems = []
    for name, settings in engines.items():
        try:
            await check_engine(settings.to_engine_config(name), settings.stall_s, tell)
        except EngineStartError as error:
            problems.append(str(error))
    return problems


async def check_engine(config: EngineConfig, stall_s: float, tell: Tell) -> None:
    """Check one; a cancelled check leaves no process.

    Raises:
        EngineStartError: what is wrong.
    """
    said: list[Ready | Failed] = []
    stall = StallWatch(time.monotonic())

    def take(records: list[Any]) -> None:
        stall.note_progress()
        for record in records:
            match record:
                case Ready() | Failed():
                    said.append(record)
                case Progress(phase, done):
                    tell(f"engine {config.name}: its model is checked: {phase} {done:.0%}")

    child = await Child.start(Peer.PREFLIGHT, config)
    reading = asyncio.create_task(child.read_until_death(take, lambda _: None))
    try:
        while not reading.done():
            await asyncio.wait([reading], timeout=_LOOK_S)
            if child.has_moved_on():
                stall.note_progress()
            if stall.look(time.monotonic(), has_work=True) > stall_s:
                child.kill_for(f"it did not get on for {stall_s:g} s")
    finally:
        child.kill()
        ended = await reading
    match said:
        case [Ready()]:
            return
        case [Failed(message, is_config)]:
            kind = EngineConfigError if is_config else EngineEnvironmentError
            raise kind(f"engine {config.name}: {message}")
        case _:
            raise EngineEnvironmentError(f"engine {config.name}: the process that checks its model {ended}")
