"""Alembic's folder: how databases of older schemas become the schema of today."""
