"""Objects from files: one bounded reader of YAML, JSON and archives for every command that reads a file.

``documents`` finds and reads the files of a path: objects with the positions of their fields (``positions``). It
uses ``files`` (which files are read, and how much of them) and ``yaml_reader`` (YAML by kubectl's rules). A file that
cannot be read results in one line that names the file, the position and the limit.
"""
