"""The commands about request files: what each may be given, and what `--help` says of it."""

from pathlib import Path

from daemon import completion
from daemon.cli_command import Actions, Adder, Help, add_command, completed


def _add_submit(actions: Actions) -> None:
    submit = add_command(
        actions,
        "submit",
        "daemon.command_submit:submit",
        Help(
            "copy files into an inbox, each whole or not at all",
            "Copy request files into a pipeline's inbox under a hidden name and show them once they are whole. Works without "
            "a running daemon: the next start takes them. A name that is in use gets a number, STEM~2.",
            "gapless submit questions.jsonl\n"
            "gapless submit --wait --pipeline chat a.jsonl b.jsonl\n"
            "gapless submit --options urgent.yaml questions.jsonl\n"
            "gapless submit --wait big.jsonl && gapless report big",
            notes="With --wait, Ctrl-C stops the waiting alone: the daemon goes on with the files.",
        ),
    )
    submit.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a request file")
    completed(
        submit.add_argument("--pipeline", metavar="NAME", help="needed where there are several"), completion.pipelines
    )
    submit.add_argument(
        "--options",
        type=Path,
        metavar="YAML",
        help="what these files want otherwise than the pipeline: sampling, limits, priority...",
    )
    submit.add_argument(
        "--wait", action="store_true", help="show progress until all are done, then print where the results are"
    )


def _add_check(actions: Actions) -> None:
    check = add_command(
        actions,
        "check",
        "daemon.command_check:check",
        Help(
            "check YAML files, or say what is wrong with request files and what they will take; runs nothing",
            "Of YAML files: the configuration that they make, every key with its value, or every mistake in them. Of "
            "request files: which lines are wrong and why, the tokens of the prompts by the model's own tokenizer and chat "
            "template, which requests do not fit into its context, how long the answers can get, and about how long it "
            "will take if a report in the outbox tells a speed.",
            "gapless check\n"
            "gapless check gapless.yaml\n"
            "gapless check --explain    each key with its value and when a change of it takes effect\n"
            "gapless check questions.jsonl --pipeline chat\n"
            "gapless check questions.jsonl --json | jq .prompt_tokens.total",
            "The model's tokenizer is loaded in a process of its own; --no-tokens does without.",
        ),
    )
    check.add_argument("files", nargs="*", type=Path, metavar="FILE", help="YAML files (.yaml, .yml) or request files")
    pipeline = check.add_argument(
        "--pipeline", metavar="NAME", help="whose model and defaults count; needed where there are several"
    )
    completed(pipeline, completion.pipelines)
    check.add_argument("--json", action="store_true", help="what was found of request files, as JSON")
    check.add_argument(
        "--explain", action="store_true", help="say of each key of the configuration when a change of it takes effect"
    )
    check.add_argument("--no-tokens", action="store_true", help="look at the lines alone")


def _add_explain(actions: Actions) -> None:
    explain = add_command(
        actions,
        "explain",
        "daemon.commands:explain",
        Help(
            "say where a dropped file is and why",
            "Look for a file in all folders of all pipelines and say what is going on with it and what to do. Works without a "
            "running daemon, and says more with one.",
            "gapless explain questions.jsonl",
        ),
    )
    explain.add_argument("file", type=Path, metavar="FILE", help="a path, or a name or STEM alone")


def _add_cancel(actions: Actions) -> None:
    cancel = add_command(
        actions,
        "cancel",
        "daemon.command_cancel:cancel",
        Help(
            "end a file: what is finished is published, the rest is cut",
            "Have a file end that waits or is being run: running requests are cut at the next step and become "
            "batch_cancelled, as do those not begun; finished ones are published. Works by a file STEM.cancel in the inbox.",
            "gapless cancel questions\ngapless cancel chat/questions",
            "`gapless retry STEM` runs what was cut another time.",
        ),
    )
    cancel.add_argument("stem", metavar="STEM", help="STEM or the file's full name, or PIPELINE/STEM, or its path")


def _add_report(actions: Actions) -> None:
    report = add_command(
        actions,
        "report",
        "daemon.command_report:report",
        Help(
            "say what finished files took: requests, errors, tokens, time, cost",
            "Print STEM.report.json of the outbox as a table. The cost is the file's share of the device's time, by tokens, "
            "at daemon.price_per_gpu_hour.",
            "gapless report questions\ngapless report chat/questions --json",
        ),
    )
    stems = report.add_argument(
        "stems", nargs="+", metavar="STEM", help="STEM, or PIPELINE/STEM where several have it, or a path"
    )
    completed(stems, completion.stems_with(".report.json"))
    report.add_argument("--json", action="store_true", help="STEM.report.json as it is")


def _add_retry(actions: Actions) -> None:
    retry = add_command(
        actions,
        "retry",
        "daemon.command_retry:retry",
        Help(
            "run again what failed of a finished file, and only that",
            "Put the requests of STEM that have no answer (refused, failed, expired, cancelled) into the inbox again, in "
            "their order and under their ids, as the file STEM~retry, whose results lie apart from those of STEM. Of a table "
            "it is the table of the rows that failed. Of a file that could not be run to its end, all requests without an "
            "answer.",
            "gapless retry questions\n"
            "gapless retry questions --code engine_error --code batch_expired --wait\n"
            "gapless retry questions --again    though it was retried before",
            "Default seeds depend on a file's content, so that sampled answers are not those that STEM would have had.",
        ),
    )
    stem = retry.add_argument("stem", metavar="STEM", help="STEM, or PIPELINE/STEM where several have it, or a path")
    completed(stem, completion.stems_with(".errors.jsonl"))
    retry.add_argument("--code", action="append", metavar="CODE", help="only errors with this code; may be repeated")
    retry.add_argument("--again", action="store_true", help="also if there is a STEM~retry already")
    retry.add_argument("--wait", action="store_true", help="as for submit")


ADDERS: dict[str, Adder] = {
    "submit": _add_submit,
    "check": _add_check,
    "explain": _add_explain,
    "cancel": _add_cancel,
    "report": _add_report,
    "retry": _add_retry,
}
