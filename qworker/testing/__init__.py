"""What users test their tasks with."""
