"""The docs as a site: Markdown of the repository becomes files that any browser reads, without a network or a server.

`build` writes them, `site` finds the pages and their order, `markdown` renders one, `sources` shows the files of the
repository that pages name, such as tests. Only the standard library, markdown-it-py and Pygments are needed.
"""
