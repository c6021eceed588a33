"""Writes vectors.json: messages signed by the reference library of Standard Webhooks.

    python3 -m venv venv && venv/bin/pip install -r requirements.txt
    venv/bin/python make.py            # writes vectors.json
    venv/bin/python make.py --check    # fails if vectors.json is not what would be written

Secrets are made for these tests, used nowhere else, worth nothing. Several secrets: the library signs once with each,
and the header holds all signatures, separated by spaces, as the standard says. Every header is also verified by the
library, with each of its secrets, before it is written.
"""

import base64
import datetime
import importlib.metadata
import json
import pathlib
import sys
from unittest import mock

import standardwebhooks.webhooks as library
from standardwebhooks.webhooks import Webhook

HERE = pathlib.Path(__file__).parent
FILE = HERE / "vectors.json"

NOW_S = 1796126400  # 2026-12-01T12:00:00Z


def secret(first, length):
    return "whsec_" + base64.b64encode(bytes((first + i) % 256 for i in range(length))).decode()


CURRENT, PREVIOUS, SHORT, LONG = secret(1, 32), secret(200, 32), secret(7, 24), secret(90, 64)

EVENT = (
    '{"type":"order.recorded","timestamp":"2026-12-01T12:00:00.000Z","data":{"id":"01k9zq3v8g7m4x2r5w6t0n1pbc",'
    '"type":"order.recorded","at":"2026-12-01T12:00:00.000Z","seq":2,"data":{"state":"awaiting_payment"}}}'
)

MESSAGES = [
    ([CURRENT], "01k9zq3v8g7m4x2r5w6t0n1pbc", NOW_S, EVENT),
    ([CURRENT], "01k9zq3v8g7m4x2r5w6t0n1pbd", NOW_S, EVENT),
    ([CURRENT], "01k9zq3v8g7m4x2r5w6t0n1pbc", NOW_S + 1, EVENT),
    ([CURRENT, PREVIOUS], "01k9zq3v8g7m4x2r5w6t0n1pbc", NOW_S, EVENT),
    ([PREVIOUS, CURRENT], "01k9zq3v8g7m4x2r5w6t0n1pbc", NOW_S, EVENT),
    ([SHORT], "msg_p5jXN8AQM9LWM0D4loKWxJek", NOW_S, '{"test": 2432232314}'),
    ([LONG], "msg_p5jXN8AQM9LWM0D4loKWxJek", NOW_S, '{"test": 2432232314}'),
    ([CURRENT], "msg_empty", NOW_S, "{}"),
    ([CURRENT], "msg_text", NOW_S, '{"title":"1499 之夜 \\u2603 ☃","buyer":"añn"}'),
    ([CURRENT], "msg_lines", NOW_S, '{\n  "a": 1,\r\n  "b": "x.y.z"\n}\n'),
]


def header(secrets, message_id, timestamp, body):
    at = datetime.datetime.fromtimestamp(timestamp, tz=datetime.timezone.utc)
    signature = " ".join(Webhook(text).sign(message_id, at, body) for text in secrets)
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp), "webhook-signature": signature}
    # The library looks at the clock; it is told the time of the message.
    with mock.patch.object(library, "datetime", wraps=datetime.datetime) as clock:
        clock.now.return_value = at
        for text in secrets:
            Webhook(text).verify(body.encode(), headers)
    return signature


def main():
    messages = [
        {"secrets": secrets, "id": message_id, "timestamp": timestamp, "body": body,
         "signature": header(secrets, message_id, timestamp, body)}
        for secrets, message_id, timestamp, body in MESSAGES
    ]
    made_with = "standardwebhooks " + importlib.metadata.version("standardwebhooks")
    text = json.dumps({"made_with": made_with, "messages": messages}, indent=1, ensure_ascii=False) + "\n"
    if "--check" in sys.argv[1:]:
        sys.exit(0 if FILE.read_text() == text else "vectors.json is not what make.py writes")
    FILE.write_text(text)


main()
