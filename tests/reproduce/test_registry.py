"""The registry: every item of the papers is there, and complete."""

import json

import pytest

from pluribus.reproduce.parts import SCALES
from pluribus.reproduce.registry import CLAIMS, PAPERS
from pluribus.reproduce.running import find_claim

FIGURES = {
    "masksembles": [f"figure{i}" for i in (1, *range(3, 15))] + ["table1", "table2"],
    "packed": [f"table{i}" for i in (1, 2, *range(5, 12))]
    + [f"figure{i}" for i in (1, 3, *range(5, 10))]
    + ["appendixJ", "appendixK", "section3.2", "table1-cost"],
    "mimo": [f"figure{i}" for i in (*range(2, 10), "4a", "4b", "6b")]
    + [f"table{i}" for i in range(1, 5)]
    + ["footnote2"],
    "fort": [f"figure{i}" for i in range(2, 11)] + [f"figureS{i}" for i in range(1, 7)],
}

# Claims that we made tests of.
TESTS = {
    "packed/capacity",
    "packed/residual",
    "packed/schedule",
    "packed/sharing",
    "mimo/capacity",
    "masksembles/capacity",
}


def test_every_table_and_figure_of_the_papers_is_there():
    assert set(CLAIMS) - TESTS == {f"{paper}/{item}" for paper, items in FIGURES.items() for item in items}
    assert set(FIGURES) == set(PAPERS)


@pytest.mark.parametrize("name", CLAIMS)
def test_an_item_has_a_claim_as_a_sentence_and_a_cost_at_each_scale(name):
    claim = CLAIMS[name]
    assert claim.title and claim.says[0].isupper() and claim.says.endswith(".")
    assert set(claim.costs) == set(SCALES) and all(claim.costs.values())
    assert claim.published or claim.settings or claim.exact
    json.dumps([dict(claim.published), dict(claim.settings)])


def test_items_that_share_an_experiment_share_its_folder():
    by_name = {}
    for claim in CLAIMS.values():
        by_name.setdefault(claim.experiment.name, []).append(claim.experiment)
    several = {name: found for name, found in by_name.items() if len(found) > 1}
    assert {"methods-cifar100", "fort-landscape"} <= set(several)
    for found in several.values():
        assert all(type(one) is type(found[0]) for one in found)
        assert len({str(getattr(one, "scales", one.name)) for one in found}) == 1


def test_an_unknown_item_lists_those_of_its_paper_or_all():
    with pytest.raises(ValueError, match="'packed/table12' is unknown.*packed/table11"):
        find_claim("packed/table12")
    with pytest.raises(ValueError, match="masksembles/figure1, .*fort/figureS6"):
        find_claim("table11")
