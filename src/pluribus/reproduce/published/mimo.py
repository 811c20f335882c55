"""Figures of MIMO (Havasi et al.), as printed."""

from __future__ import annotations

from .packed import printed_rows

COLUMNS = ("accuracy", "nll", "ece", "cacc", "cnll", "cece", "milliseconds", "passes")

TABLE1 = printed_rows(
    """
single: 96 0.159 0.023 76.1 1.050 0.153 0.632 1
dropout_single_pass: 95.9 0.160 0.024 68.8 1.270 0.166 0.656 1
multihead: 95.9 0.161 0.022 76.6 0.969 0.144 0.636 1
mimo: 96.4 0.123 0.010 76.6 0.927 0.112 0.639 1
treenet: 95.9 0.158 0.018 75.5 0.969 0.137 0.961 1.5
batch_ensemble: 96.2 0.143 0.021 77.5 1.020 0.129 2.552 4
thin_ensemble: 96.3 0.115 0.008 77.2 0.840 0.089 0.823 4
deep: 96.6 0.114 0.010 77.9 0.810 0.087 2.536 4
""",
    COLUMNS,
)

TABLE2 = printed_rows(
    """
single: 79.8 0.875 0.086 51.4 2.700 0.239 0.632 1
dropout_single_pass: 79.6 0.830 0.050 42.6 2.900 0.202 0.656 1
multihead: 79.5 0.834 0.048 52.1 2.339 0.156 0.636 1
mimo: 82.0 0.690 0.022 53.7 2.284 0.129 0.639 1
treenet: 80.8 0.777 0.047 53.5 2.295 0.176 0.961 1.5
batch_ensemble: 81.5 0.740 0.056 54.1 2.490 0.191 2.552 4
thin_ensemble: 81.5 0.694 0.017 53.7 2.190 0.111 0.823 4
deep: 82.7 0.666 0.021 54.1 2.270 0.138 2.536 4
""",
    COLUMNS,
)

TABLE3 = printed_rows(
    """
single: 76.100 0.943 0.039 40.500 3.200 0.105 0.640 1
multihead: 76.611 0.929 0.043 40.616 3.250 0.122 0.638 1
mimo: 77.500 0.887 0.037 43.300 3.030 0.106 0.635 1
treenet: 78.139 0.852 0.017 42.420 3.052 0.073 0.848 1.5
batch_ensemble: 76.700 0.944 0.049 41.800 3.180 0.110 2.592 4
deep: 77.500 0.877 0.031 42.100 2.990 0.051 2.624 4
wide: 77.885 0.938 0.072 45.000 3.100 0.150 1.674 1
wide_mimo: 79.300 0.843 0.061 45.791 3.048 0.147 1.706 1
""",
    COLUMNS,
)

_TABLE4_COLUMNS = (
    *("nll", "accuracy", "ece", "cnll", "cacc", "cece", "mce"),
    *("nll imagenet_a", "accuracy imagenet_a", "ece imagenet_a", "nll imagenet_v2", "accuracy imagenet_v2"),
    *("ece imagenet_v2", "stable_accuracy imagenet_vid_robust", "stable_accuracy ytbb_robust", "accuracy objectnet"),
)

TABLE4 = printed_rows(
    """
single: 0.939 76.2 0.032 3.21 40.5 0.103 75.4 8.09 0.7 0.425 1.58 64.4 0.074 29.9 21.7 25.9
mimo: 0.887 77.5 0.037 3.03 43.3 0.106 71.7 7.76 1.4 0.432 1.51 65.7 0.084 31.8 22.2 28.1
wide_mimo: 0.843 79.3 0.061 3.1 45.0 0.150 69.6 7.52 3.3 0.46 1.49 67.9 0.109 35.3 22.9 29.5
""",
    _TABLE4_COLUMNS,
)

FOOTNOTE2 = printed_rows("single: 36.479 10.559\nmimo: 36.492 10.561", ("parameters", "flops"))

INCREASE = {"parameters": "0.03 %", "flops": "0.01 %"}  # of the text of section 2
