"""What the tests of the report share."""

from kept_templates import kept_templates  # noqa: F401
