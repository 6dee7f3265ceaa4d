"""The doctor's look at the models: could an engine start with each, is its chat template of use. In processes of their own."""

import asyncio
from collections.abc import Callable, Iterator

from daemon.doctor import Finding, fail, ok, warn
from daemon.errors import EngineStartError, ExitCode
from daemon.preflight import check_engine
from daemon.settings import Settings
from daemon.token_count import TextProcess
from pipelines.config import EngineConfig
from pipelines.core.request import Progress, RequestRefused, SamplingParams, TextRequest
from pipelines.counted import counted

_MESSAGES = ({"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Is anybody there?"})


def look_at_models(settings: Settings, say: Callable[[str], None]) -> Iterator[Finding]:
    """Yield what there is to say of each engine's model; `say` is told how far its loading is."""
    for name, engine in settings.engines.items():
        yield asyncio.run(_look(engine.to_engine_config(name), engine.stall_s, say))


async def _look(config: EngineConfig, stall_s: float, say: Callable[[str], None]) -> Finding:
    subject = f"engine {config.name}"

    def report(progress: Progress) -> None:
        say(f"{config.model.path}: {progress.phase} {progress.done:.0%}")

    request = TextRequest(1, 1, 0, SamplingParams(max_tokens=1), messages=_MESSAGES)
    try:
        await check_engine(config, stall_s, say)
        async with TextProcess.started(config, report) as text:
            counts = await text.count(config, [(request, 1)], lambda _: None)
            ready = text.ready
    except EngineStartError as error:
        why = str(error).removeprefix(f"engine {config.name}: ")
        if error.exit_code is ExitCode.FIX_INPUT:
            return fail(subject, why, f"mend that under engines.{config.name}", error.exit_code)
        return fail(subject, why, f"mend that, or choose something else under engines.{config.name}")
    name = ready.model if ready else config.model.path
    if refused := counts.refusals.get(request.key):
        return _template_finding(subject, name, refused)
    tokens = f"a greeting is {counted(counts.prompt_tokens[0], 'token')}"
    return ok(
        subject, f"{name}: its tokenizer and chat template work ({tokens}), context {ready.context if ready else 0:,}"
    )


def _template_finding(subject: str, name: str, refused: RequestRefused) -> Finding:
    if refused.code == "no_chat_template":
        advice = "send prompts to /v1/completions, or take the instruct version of the model"
        return warn(subject, f"{name}: it has no chat template, so that chat requests are refused", advice)
    return warn(subject, f"{name}: {refused.message}", "some models take no system message: leave `system` out")
