"""Run by alembic. Works on the connection, and inside the transaction, that ``logs.opening`` holds."""

from alembic import context

from edgetune.logs.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
