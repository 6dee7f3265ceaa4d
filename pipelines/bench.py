"""`python -m pipelines.bench`, which `gapless bench` calls: how fast the engine is on this machine, and how busy its device."""

import os
import sys
from collections.abc import Sequence
from functools import partial

from pipelines.benchmark.drawing import check_drawing
from pipelines.benchmark.measure import CheckError
from pipelines.benchmark.options import Options, parse_options
from pipelines.benchmark.settings import OptionError
from pipelines.errors import EngineError, InvariantError, ModelError

_OK, _OUR_FAULT, _FIX_INPUT, _ENVIRONMENT = 0, 1, 2, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit code."""
    try:
        return _bench(parse_options(arguments))
    except (OptionError, ModelError) as error:
        return _fail(str(error), _FIX_INPUT)
    except (CheckError, InvariantError) as error:
        return _fail(str(error), _OUR_FAULT)
    except (EngineError, OSError) as error:
        return _fail(str(error), _ENVIRONMENT)
    except KeyboardInterrupt:
        return 128 + 2
    except Exception as error:  # a fault of ours; whoever mends it asks for the traceback
        if os.environ.get("GAPLESS_TRACEBACK"):
            raise
        return _fail(f"internal error: {type(error).__name__}: {error} (GAPLESS_TRACEBACK=1 shows where)", _OUR_FAULT)


def _bench(options: Options) -> int:
    if options.timeline is not None:
        check_drawing()  # before minutes go by
    from pipelines.benchmark.program import run  # noqa: PLC0415  the options are checked first

    problems = run(options, partial(print, flush=True), partial(print, file=sys.stderr, flush=True))
    for problem in problems:
        print(problem, file=sys.stderr)
    return _OUR_FAULT if problems else _OK


def _fail(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
