"""Figures of Packed-Ensembles (Laurent et al.) and its supplement, as printed."""

from __future__ import annotations

from typing import Any

TABLE1_COLUMNS = ("accuracy", "nll", "ece", "aupr", "auroc", "fpr95", "parameters", "mult_adds")

_TABLE1 = """
single r18 c10: 94.0 0.238 0.035 94.0 89.7 33.8 11.17 0.56
batch_ensemble r18 c10: 92.9 0.257 0.031 92.4 87.8 32.1 11.21 2.22
mimo r18 c10: 94.0 0.228 0.033 94.4 90.2 28.6 11.19 2.24
masksembles r18 c10: 94.0 0.188 0.009 93.6 89.5 27.8 11.24 2.22
packed r18 c10: 94.3 0.178 0.007 94.7 91.3 23.2 8.18 0.48
deep r18 c10: 95.1 0.156 0.008 94.7 91.3 18.0 44.70 2.22
single r50 c10: 95.1 0.211 0.031 95.2 91.9 23.6 23.52 1.30
batch_ensemble r50 c10: 93.9 0.255 0.033 94.7 91.3 20.1 23.63 5.19
mimo r50 c10: 95.4 0.197 0.030 95.1 90.8 26.0 23.59 5.22
masksembles r50 c10: 95.3 0.175 0.019 95.7 92.2 22.1 23.81 5.19
packed r50 c10: 95.9 0.137 0.008 97.3 95.2 14.4 14.55 1.00
deep r50 c10: 96.0 0.136 0.008 97.0 94.7 15.5 94.08 5.19
single wr c10: 95.4 0.200 0.029 96.1 93.2 20.4 36.49 5.95
batch_ensemble wr c10: 95.6 0.206 0.027 95.5 92.5 22.1 36.59 23.81
mimo wr c10: 94.7 0.234 0.034 94.9 90.6 30.9 36.51 23.82
masksembles wr c10: 94.0 0.186 0.016 97.2 95.0 14.5 36.53 23.82
packed wr c10: 96.2 0.133 0.009 98.1 96.5 11.1 19.35 4.06
deep wr c10: 95.8 0.143 0.013 97.8 96.0 12.5 145.96 23.82
single r18 c100: 75.1 1.016 0.093 88.6 79.5 55.0 11.22 0.56
batch_ensemble r18 c100: 71.2 1.236 0.116 86.0 75.4 60.2 11.25 2.22
mimo r18 c100: 75.3 0.962 0.069 89.2 80.7 52.9 11.36 2.24
masksembles r18 c100: 74.2 1.054 0.061 86.7 76.3 59.8 11.24 2.22
packed r18 c100: 76.4 0.858 0.041 88.7 79.8 57.1 8.18 0.48
deep r18 c100: 78.2 0.800 0.018 90.2 82.4 50.5 44.88 2.22
single r50 c100: 78.3 0.905 0.089 87.4 77.9 57.6 23.70 1.30
batch_ensemble r50 c100: 66.6 1.788 0.182 85.2 74.6 60.6 23.81 5.19
mimo r50 c100: 79.0 0.876 0.079 87.5 76.9 64.7 24.33 5.22
masksembles r50 c100: 78.5 0.832 0.046 90.3 81.9 52.3 23.81 5.19
packed r50 c100: 81.2 0.703 0.020 90.0 81.7 56.5 15.55 1.00
deep r50 c100: 80.9 0.713 0.026 89.2 80.8 52.5 94.82 5.19
single wr c100: 80.3 0.963 0.156 81.0 64.2 80.1 36.49 5.95
batch_ensemble wr c100: 82.3 0.835 0.130 88.1 78.2 69.8 36.59 23.81
mimo wr c100: 80.2 0.822 0.028 84.9 72.0 72.8 36.51 23.82
masksembles wr c100: 74.4 0.937 0.063 76.1 60.0 75.1 36.53 23.82
packed wr c100: 83.9 0.678 0.089 86.2 73.2 80.7 36.62 5.96
deep wr c100: 82.5 0.903 0.229 81.6 67.9 71.3 145.96 23.82
"""

TABLE2_COLUMNS = (
    *("accuracy", "ece", "aupr textures", "auroc textures", "fpr95 textures", "aupr imagenet_o", "auroc imagenet_o"),
    *("fpr95 imagenet_o", "accuracy imagenet_r", "nll imagenet_r", "ece imagenet_r"),
)

_TABLE2 = """
single r50: 77.8 0.1206 18.0 80.9 68.6 3.6 50.8 90.8 23.5 5.187 0.0822
batch_ensemble r50: 75.9 0.0348 20.2 81.6 66.5 4.0 55.2 82.3 21.0 6.148 0.1649
mimo r50: 77.6 0.1465 18.4 81.6 66.8 3.7 52.2 90.6 23.4 5.115 0.0585
masksembles r50: 73.6 0.2093 13.6 79.7 68.3 3.3 47.7 87.7 21.2 5.139 0.0107
packed alpha=3 r50: 77.9 0.1796 35.1 88.2 43.7 9.9 68.4 80.9 23.8 4.978 0.0221
deep r50: 79.2 0.2326 19.6 83.4 62.1 3.7 52.5 85.5 24.9 4.879 0.0182
single r50x4: 80.2 0.0221 20.5 82.6 63.9 4.9 60.2 87.4 26.0 5.190 0.1721
batch_ensemble r50x4: 77.7 0.0237 23.8 82.8 63.8 4.4 58.4 80.5 23.4 6.079 0.2029
mimo r50x4: 80.3 0.0150 19.3 82.5 66.1 4.9 60.7 86.4 25.8 5.278 0.1886
packed alpha=2 r50x4: 81.3 0.1034 34.6 88.1 50.3 9.6 69.9 79.2 26.6 4.848 0.0750
deep r50x4: 82.1 0.0534 23.0 85.6 58.1 5.0 62.7 81.9 28.2 4.789 0.1048
"""

_TABLE5 = """
alpha=1 gamma=1: 0.7872 0.0165 0.8969
alpha=2 gamma=1: 0.8116 0.0203 0.8966
alpha=3 gamma=1: 0.8187 0.0201 0.8825
alpha=4 gamma=1: 0.8183 0.0230 0.8939
alpha=1 gamma=2: 0.7857 0.0185 0.9024
alpha=2 gamma=2: 0.8103 0.0295 0.9115
alpha=3 gamma=2: 0.8186 0.0197 0.9127
alpha=4 gamma=2: 0.8242 0.0190 0.9088
alpha=2 gamma=4: 0.8119 0.0180 0.9066
alpha=3 gamma=4: 0.8182 0.0236 0.9140
alpha=4 gamma=4: 0.8225 0.0226 0.9229
"""

TABLE6_COLUMNS = ("alpha=2 gamma=1 M=4", "alpha=3 gamma=1 M=8", "alpha=4 gamma=2 M=8", "alpha=6 gamma=4 M=8",
                  "alpha=8 gamma=1 M=16")  # fmt: skip

_TABLE6 = """
msp aupr: 0.8952+-0.0132 0.9055+-0.0034 0.9153+-0.0012 0.9149+-0.0071 0.9141+-0.0057
max_logit aupr: 0.9183+-0.0098 0.9175+-0.0044 0.9285+-0.0012 0.9265+-0.0070 0.9268+-0.0068
entropy aupr: 0.9105+-0.0138 0.9152+-0.0035 0.9260+-0.0016 0.9237+-0.0066 0.9252+-0.0060
mutual_information aupr: 0.8649+-0.0061 0.9139+-0.0077 0.9157+-0.0072 0.9196+-0.0109 0.9245+-0.0091
variation_ratio aupr: 0.8404+-0.0071 0.8746+-0.0056 0.8827+-0.0033 0.8842+-0.0102 0.8931+-0.0072
msp auroc: 0.8056+-0.0260 0.8204+-0.0101 0.8408+-0.0033 0.8432+-0.0134 0.8387+-0.0094
max_logit auroc: 0.8562+-0.0194 0.8421+-0.0115 0.8665+-0.0027 0.8621+-0.0144 0.8607+-0.0114
entropy auroc: 0.8361+-0.0271 0.8427+-0.0095 0.8662+-0.0027 0.8617+-0.0136 0.8614+-0.0096
mutual_information auroc: 0.7711+-0.0064 0.8312+-0.0135 0.8402+-0.0116 0.8468+-0.0163 0.8513+-0.0120
variation_ratio auroc: 0.7305+-0.0153 0.7799+-0.0129 0.7943+-0.0082 0.7999+-0.0166 0.8092+-0.0113
"""

TABLE7_COLUMNS = ("accuracy", "ece", "aupr", "mutual_information", "mutual_information outside")

_TABLE7 = """
r18 none: 71.70+-0.06 0.0497+-0.0013 87.32+-0.91 0 0
r18 ND: 75.79+-0.22 0.0365+-0.0044 89.53+-0.47 0.1945 0.4001
r18 DI: 76.20+-0.04 0.0419+-0.0006 89.54+-0.39 0.2011 0.4391
r18 DB: 76.06+-0.02 0.0434+-0.0011 88.70+-0.27 0.1987 0.4079
r18 ND DI: 76.10+-0.05 0.0424+-0.0004 88.65+-0.42 0.1995 0.4360
r18 ND DB: 76.19+-0.11 0.0433+-0.0010 88.87+-0.15 0.2032 0.4090
r18 DI DB: 76.14+-0.07 0.0437+-0.0008 89.21+-0.38 0.1943 0.4195
r18 ND DI DB: 76.29+-0.07 0.0445+-0.0006 89.00+-0.54 0.1954 0.4060
r50 none: 77.63+-0.23 0.0825+-0.0018 89.19+-0.65 0 0
r50 ND: 80.94+-0.10 0.0179+-0.0010 90.23+-0.62 0.1513 0.4022
r50 DI: 81.01+-0.06 0.0202+-0.0011 91.10+-0.39 0.1524 0.4088
r50 DB: 80.87+-0.10 0.0178+-0.0010 90.80+-0.30 0.1505 0.4115
r50 ND DI: 81.16+-0.10 0.0210+-0.0008 91.69+-0.56 0.1584 0.4135
r50 ND DB: 81.14+-0.07 0.0200+-0.0007 90.41+-0.39 0.1503 0.3897
r50 DI DB: 81.10+-0.05 0.0186+-0.0016 90.85+-0.29 0.1521 0.4034
r50 ND DI DB: 81.08+-0.08 0.0198+-0.0013 90.68+-0.25 0.1534 0.4031
"""

TABLE8_COLUMNS = ("training f32, s/epoch", "inference f32, im/s", "training f16, s/epoch", "inference f16, im/s")

_TABLE8 = """
single: 37.06 3709 22.42 5718
packed (2,4,1): 179.50 1381 51.20 3406
packed (2,4,2): 175.10 1501 52.11 3440
deep: 145.30 1001 84.86 1609
mimo: 37.90 3574 24.44 5649
batch_ensemble: 58.78 1809 53.97 1916
"""

TABLE9_COLUMNS = ("accuracy", "nll", "ece", "aupr", "auroc", "fpr95", "parameters")

_TABLE9 = """
packed r50: 96.0 0.1367 0.0087 97.1 94.9 14.5 23.6
resnext50: 90.4 0.4604 0.0709 90.4 82.5 63.4 23.0
"""

_TABLE10 = """
single r50: 25.6 4.09
batch_ensemble r50: 25.7 16.36
mimo r50: 31.7 4.45
masksembles r50: 25.7 16.36
packed alpha=3 r50: 59.1 9.29
deep r50: 102.4 16.36
single r50x4: 383.6 70.0
batch_ensemble r50x4: 384.4 256.0
mimo r50x4: 408.3 65.4
masksembles r50x4: 384.0 256.0
packed alpha=2 r50x4: 392.0 64.47
deep r50x4: 1534.4 280.0
"""

TABLE11_COLUMNS = ("packed rmse", "deep rmse", "packed nll", "deep nll")

_TABLE11 = """
boston: 2.218+-0.099 2.219+-0.098 2.028+-0.034 2.047+-0.028
concrete: 5.092+-0.225 5.167+-0.234 2.854+-0.028 2.885+-0.032
energy: 1.675+-0.085 1.712+-0.067 1.543+-0.072 1.553+-0.060
kin8nm: 0.058+-0.003 0.058+-0.003 -1.442+-0.010 -1.452+-0.010
naval: 0.002+-0.000 0.002+-0.000 -4.835+-0.066 -4.833+-0.097
power: 3.127+-0.018 3.097+-0.020 2.607+-0.007 2.600+-0.007
protein: 3.476+-0.030 3.412+-0.017 2.472+-0.033 2.442+-0.015
wine: 0.482+-0.006 0.483+-0.006 0.622+-0.014 0.611+-0.013
yacht: 1.949+-0.215 2.511+-0.283 2.023+-0.075 2.023+-0.074
"""

_LAKSHMINARAYANAN = """
boston: 3.28+-1.00 2.41+-0.25
concrete: 6.03+-0.58 3.06+-0.18
energy: 2.09+-0.29 1.38+-0.22
kin8nm: 0.09+-0.00 -1.20+-0.02
naval: 0.00+-0.00 -5.63+-0.05
power: 4.11+-0.17 2.79+-0.04
protein: 4.71+-0.06 2.83+-0.02
wine: 0.64+-0.04 0.94+-0.12
yacht: 1.58+-0.48 1.18+-0.21
"""


def printed_rows(text: str, columns: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """A table as it is printed: row, column, text.

    >>> printed_rows("single: 1.0 2.50", ("a", "b"))
    {'single': {'a': '1.0', 'b': '2.50'}}
    """
    found = {}
    for line in text.strip().splitlines():
        name, _, cells = line.rpartition(": ")
        found[name] = dict(zip(columns, cells.split(), strict=True))
    return found


TABLE1 = printed_rows(_TABLE1, TABLE1_COLUMNS)
TABLE2 = printed_rows(_TABLE2, TABLE2_COLUMNS)
TABLE5 = printed_rows(_TABLE5, ("accuracy", "ece", "aupr"))
TABLE6 = printed_rows(_TABLE6, TABLE6_COLUMNS)
TABLE7 = printed_rows(_TABLE7, TABLE7_COLUMNS)
TABLE8 = printed_rows(_TABLE8, TABLE8_COLUMNS)
TABLE9 = printed_rows(_TABLE9, TABLE9_COLUMNS)
TABLE10 = printed_rows(_TABLE10, ("parameters", "mult_adds"))
TABLE11 = printed_rows(_TABLE11, TABLE11_COLUMNS)
LAKSHMINARAYANAN = printed_rows(_LAKSHMINARAYANAN, ("rmse", "nll"))  # 2017, five members, 40 epochs

APPENDIX_J: dict[str, Any] = {"standard deviation of accuracy, ResNet-50, CIFAR-100": {
    "single": "0.68", "deep": "0.43", "packed": "0.19",
}}  # fmt: skip


def parse_printed(text: str) -> tuple[float, float]:
    """A figure and its spread as printed, NaN where there is none.

    >>> parse_printed("2.41+-0.25")
    (2.41, 0.25)
    """
    value, _, spread = text.partition("+-")
    return float(value), float(spread or "nan")


def decimals(text: str) -> int:
    """How many decimals are printed.

    >>> decimals("0.90+-0.1"), decimals("12")
    (2, 0)
    """
    return len(text.partition("+-")[0].partition(".")[2])
