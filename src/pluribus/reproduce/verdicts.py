"""What a claim comes to, and the rules by which that is decided: the names that checks use."""

from ..report.claims import ClaimVerdict as ClaimVerdict
from ..results.judgements import FAILS as FAILS
from ..results.judgements import HOLDS as HOLDS
from ..results.judgements import OPEN as OPEN
from ..results.judgements import above as above
from ..results.judgements import all_of as all_of
from ..results.judgements import below as below
from ..results.judgements import count_judgements as count_judgements
from ..results.judgements import equal as equal
from ..results.judgements import most_of as most_of
from ..results.judgements import over_splits as over_splits
from ..results.judgements import plural as plural
from ..results.judgements import show_interval as show_interval
