"""The trainer's commands, mounted. torch is imported only when one of them runs."""

from __future__ import annotations

import typer

from trainer.command_line import (
    averaging_commands,
    evaluation_commands,
    gate_commands,
    planning_commands,
    run_commands,
    train_command,
)
from trainer.command_line.doremi_command import doremi

app = typer.Typer(help="Train on a corpus, and score what was trained.", no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(run_commands.exports, name="export")
for _command in (
    planning_commands.plan_training, planning_commands.forecast, evaluation_commands.choices, gate_commands.gate,
    run_commands.replay, run_commands.generate, run_commands.noise, averaging_commands.average,
):  # fmt: skip
    app.command()(_command)
app.command(cls=train_command.TrainCommand, epilog=train_command.EPILOG)(train_command.train)
app.command()(doremi)
app.command()(evaluation_commands.evaluate)
