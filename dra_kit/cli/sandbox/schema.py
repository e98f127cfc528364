"""``dra-kit sandbox schema``."""

from __future__ import annotations

import json

import click


@click.command("schema")
@click.option("--timeline", is_flag=True, help="that of a line of the file that --timeline keeps")
def schema_command(*, timeline: bool) -> None:
    """Print the JSON schema of a story's expect.yaml, for editors that complete and check it.

    \b
      dra-kit sandbox schema > story.schema.json

    and, as the first line of an expect.yaml beside it:

    \b
      # yaml-language-server: $schema=../story.schema.json
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    if timeline:
        from dra_kit.sandbox.timeline.file import timeline_schema as schema
    else:
        from dra_kit.sandbox.stories.story_model import story_schema as schema

    click.echo(json.dumps(schema(), indent=2, ensure_ascii=False))
