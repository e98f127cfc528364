"""Objects from files: one bounded reader of YAML, JSON and archives, for every tool that is given a file.

``sources`` finds the files that a path stands for, and ``documents`` reads them: objects, with the places of their
fields (``positions``). Below these, ``limits`` says how much is read, ``files`` which files are, ``text`` parses YAML
and JSON by kubectl's rules, and ``archive`` reads what ``dra-kit snapshot`` saved. Whatever a file has in it, a reader
ends with its objects or with one line that names the file, the place and the limit.
"""
