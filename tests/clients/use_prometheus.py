"""The parsers of Prometheus' own client library, against both texts of /metrics."""
import sys
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

# Another one's requests would change the numbers between the two scrapes: only what none counts is compared.
STEADY = ("vllm:request_", "sglang:e2e_", "vllm:e2e_", "spinney_accept_length", "vllm:generation_tokens", "spinney_build")
# What the server says when Prometheus itself asks.
ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


def scrape(accept):
    headers = {"Accept": accept} if accept else {}
    with urllib.request.urlopen(urllib.request.Request(URL, headers=headers), timeout=60) as reply:
        return reply.headers["content-type"], reply.read().decode()


def samples(families):
    found = {}
    for family in families:
        for sample in family.samples:
            labels = dict(sample.labels)
            if "le" in labels:
                labels["le"] = float(labels["le"])
            key = sample.name, tuple(sorted(labels.items()))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


URL = sys.argv[1].removesuffix("/v1") + "/metrics"
kind, text = scrape(ACCEPT)
assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8", kind
families = list(open_metrics(text))
for family in families:
    assert family.documentation and family.type in ("counter", "gauge", "histogram"), family
    assert not family.name.endswith("_total"), family.name
    for unit in ("seconds", "bytes"):
        assert (family.unit == unit) == family.name.endswith("_" + unit), family.name
ours = samples(families)
kind, text = scrape(None)
assert kind == "text/plain; version=0.0.4; charset=utf-8", kind
theirs = samples(prometheus(text))
assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
steady = [key for key in ours if key[0].startswith(STEADY)]
assert len(steady) > 100 and [ours[key] for key in steady] == [theirs[key] for key in steady]
assert sum(ours[key] for key in steady if key[0] == "vllm:request_success_total") > 0
