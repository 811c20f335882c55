"""`pluribus cite`: an entry for every method that has a paper, in a form that BibTeX reads."""

import re

from pluribus.cli.app import app


def cite(capsys, *names) -> str:
    app(["cite", *names], standalone_mode=False)
    return capsys.readouterr().out


def test_entries_are_whole_and_each_is_there_once(capsys):
    text = cite(capsys)
    keys = re.findall(r"^@(?:inproceedings|misc)\{(\w+),$", text, re.M)
    assert len(keys) == len(set(keys)) == 9  # multihead is MIMO's
    for entry in text.strip().split("\n\n"):
        assert entry.count("{") == entry.count("}") and entry.endswith("}")
        assert re.search(r"  author = \{[^}]+ and [^}]+\},", entry) and re.search(r"  year = \{20\d\d\},", entry)
        assert "booktitle" in entry or "eprint = {" in entry
