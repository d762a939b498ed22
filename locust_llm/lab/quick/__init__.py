"""Quick: the first answer about a server, in a minute: its speed, how many users fit, what to run
next.

Read first: quick_command.py, which runs ``check``, then ``run --find-max`` as a child.
quick_answer.py writes the result in three sentences.
"""
