"""What all commands share: classes of commands, options, session, output and errors."""
