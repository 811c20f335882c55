"""A study on a Ray cluster of two nodes, both on this machine.

You learn: `conduct(study, folder, ray=ADDRESS)` sends the runs of a study to any cluster, and gives the numbers that
one process gives. Ray listens on the loopback address only, because whoever reaches a cluster can run code on it.
"""

import os
import sys

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # loopback; before ray is imported

try:
    import ray
    from ray.cluster_utils import Cluster
except ImportError:
    sys.exit("This example needs Ray: pip install '.[ray]'")

from pluribus.study import Study, conduct


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        print(f"{sum(node['Alive'] for node in ray.nodes())} nodes, {ray.cluster_resources()['CPU']:.0f} processors")
        study = Study(data=["moons"], model="mlp", methods=["single", "deep"], size=2, training={"epochs": 3})
        outcome = conduct(study, "ray-study", ray="auto")
        for result in outcome.results:
            figures = {name: result.record["metrics"][name]["value"] for name in ("accuracy", "nll")}
            print(f"{result.record['method']:8} accuracy {figures['accuracy']:.3f}  NLL {figures['nll']:.3f}")
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
