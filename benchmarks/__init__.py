"""Speed, memory and recovery, measured."""
