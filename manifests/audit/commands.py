"""`corpusmill audit …`: questions to a finished corpus, put together from modules by subject. Other packages add commands to the
same group (`stages.audit_commands`)."""

from __future__ import annotations

import typer

from manifests import run_commands
from manifests.audit import document_commands, review_commands, rule_commands, sql_commands, takedown_commands

audit = typer.Typer(no_args_is_help=True, add_completion=False, help="Ask a finished corpus anything.")
audit.command()(rule_commands.funnel)
audit.command("unchecked")(rule_commands.unchecked_)
audit.command()(document_commands.why)
audit.command()(rule_commands.rules)
audit.command()(document_commands.domain)
audit.command()(rule_commands.whatif)
audit.command()(takedown_commands.takedown)
audit.command()(review_commands.reviews)
audit.command()(sql_commands.sql)
audit.command("trained-on")(run_commands.trained_on)
