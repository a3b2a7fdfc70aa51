"""What stages hand to each other: files with a schema, written whole or not at all."""
