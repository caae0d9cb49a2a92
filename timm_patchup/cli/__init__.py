"""The commands: the only modules that know flags and exit codes. They may import everything; nothing imports them."""
