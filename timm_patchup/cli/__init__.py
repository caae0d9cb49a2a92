"""The commands: flags in, exit codes and one clear line out. Imports from anywhere; nothing imports it."""
