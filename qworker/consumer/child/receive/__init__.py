"""How a child receives messages: from which queues, how many, and how it waits while queues are empty."""
