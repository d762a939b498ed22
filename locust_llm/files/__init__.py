"""Files: reading and writing files that may be broken, hostile, endless or on a full disk.

regular_file.py opens nothing but regular files. user_file.py reads what a user names.
sqlite_file.py reads foreign databases. buffered_file.py keeps lines that the disk does not take
yet.
"""
