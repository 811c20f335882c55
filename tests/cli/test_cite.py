"""`pluribus cite`: an entry for every method that has a paper, in a form that BibTeX reads."""

import re

import pytest

import pluribus as pb
from pluribus.cli.app import app
from pluribus.methods.method_info import info_of


def cite(capsys, *names) -> str:
    app(["cite", *names], standalone_mode=False)
    return capsys.readouterr().out


def test_every_method_but_the_single_network_has_a_paper():
    assert [name for name, method in pb.METHODS.items() if info_of(method).paper is None] == ["single"]


def test_entries_are_whole_and_each_is_there_once(capsys):
    text = cite(capsys)
    keys = re.findall(r"^@(?:inproceedings|misc)\{(\w+),$", text, re.M)
    assert len(keys) == len(set(keys)) == 9  # multihead is MIMO's
    for entry in text.strip().split("\n\n"):
        assert entry.count("{") == entry.count("}") and entry.endswith("}")
        assert re.search(r"  author = \{[^}]+ and [^}]+\},", entry) and re.search(r"  year = \{20\d\d\},", entry)
        assert "booktitle" in entry or "eprint = {" in entry


def test_one_method_gives_one_entry_and_another_word_a_message(capsys):
    assert cite(capsys, "packed").count("@") == 1
    with pytest.raises(ValueError, match="the method 'bagging' is unknown. Choose from single, deep, packed"):
        cite(capsys, "bagging")
