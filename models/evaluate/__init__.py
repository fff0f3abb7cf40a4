"""./run evaluate: tasks that the field knows, judged on a running server. See README.md."""
