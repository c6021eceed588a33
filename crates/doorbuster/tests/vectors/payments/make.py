"""Writes vectors.json: notifications, requests and answers made with the providers' own SDKs.

    python3 -m venv venv && venv/bin/pip install -r requirements.txt
    venv/bin/python make.py            # writes vectors.json (and keys, if there are none)
    venv/bin/python make.py --check    # fails if vectors.json is not what would be written

The SDK signs where it can sign, and says of every notification whether it accepts it. What it accepts although we
refuse it carries the reason under `stricter`. Everything is reproducible: the keys are kept in keys/ (made for these
tests, used nowhere else, worth nothing), times and nonces are fixed, and both signatures are deterministic.
"""

import base64
import datetime
import json
import pathlib
import sys
import tempfile
import time
import types
import urllib.parse
from unittest import mock

import stripe
from alipay.aop.api import DefaultAlipayClient as alipay_client
from alipay.aop.api.AlipayClientConfig import AlipayClientConfig
from alipay.aop.api.request.AlipayTradeCloseRequest import AlipayTradeCloseRequest
from alipay.aop.api.request.AlipayTradeFastpayRefundQueryRequest import AlipayTradeFastpayRefundQueryRequest
from alipay.aop.api.request.AlipayTradePagePayRequest import AlipayTradePagePayRequest
from alipay.aop.api.request.AlipayTradeQueryRequest import AlipayTradeQueryRequest
from alipay.aop.api.request.AlipayTradeRefundRequest import AlipayTradeRefundRequest
from alipay.aop.api.request.AlipayTradeWapPayRequest import AlipayTradeWapPayRequest
from alipay.aop.api.util import SignatureUtils as alipay_signatures
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from wechatpayv3 import WeChatPay, WeChatPayType
from wechatpayv3 import core as wechat_core
from wechatpayv3 import utils as wechat_utils

HERE = pathlib.Path(__file__).parent
KEYS = HERE / "keys"

NOW_S = 1796126400  # 2026-12-01T12:00:00Z
NOW_MS = NOW_S * 1000
PAYMENT = "01jdz0payment0000000000001"
REFUND = "01jdz0refund00000000000001"
SHOP = "000102030405060708090a0b0c0d0e0f"

STRIPE_KEY = "sk_test_only_in_these_tests"
STRIPE_SECRETS = ["whsec_test_only_current_0123456789abcdef", "whsec_test_only_previous_0123456789abcde"]

ALIPAY_APP = "2021000000000001"
ALIPAY_SELLER = "2088000000000001"

WECHAT_MCHID = "1900000001"
WECHAT_APPID = "wx0000000000000001"
WECHAT_SEAL = "test-only-apiv3-key-0123456789ab"
WECHAT_MERCHANT_SERIAL = "5157F09EFDC096DE15EBE81A47057A7232F1B8E1"
# The second begins with zeros on purpose: certificates drop them, headers may not.
WECHAT_PLATFORM = {"current": 0x6F2A9C0D5E4B3A291807F6E5D4C3B2A190817263, "previous": 0x00A1B2C3D4E5F60718293A4B5C6D7E8F90123456}
WECHAT_KEY_ID = "PUB_KEY_ID_0119000000012026120100000000000001"
NONCE = "0123456789abcdef0123456789abcdef"


# ---------------------------------------------------------------------------------------------------- keys


def make_keys():
    KEYS.mkdir(exist_ok=True)
    names = ["alipay-app", "alipay-platform", "wechat-merchant", "wechat-public-key", "stranger", "too-short"]
    for name in names + [f"wechat-platform-{which}" for which in WECHAT_PLATFORM]:
        path = KEYS / f"test-only-{name}.pem"
        if not path.exists():
            key = rsa.generate_private_key(public_exponent=65537, key_size=1024 if name == "too-short" else 2048)
            path.write_bytes(private_pem(key))
    for which, serial in WECHAT_PLATFORM.items():
        path = KEYS / f"test-only-wechat-platform-{which}-certificate.pem"
        if not path.exists():
            key = load(f"wechat-platform-{which}")
            name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test only")])
            builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
            builder = builder.serial_number(serial).not_valid_before(datetime.datetime(2020, 1, 1))
            builder = builder.not_valid_after(datetime.datetime(2050, 1, 1))
            builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def private_pem(key, form=serialization.PrivateFormat.PKCS8):
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def load(name):
    return serialization.load_pem_private_key((KEYS / f"test-only-{name}.pem").read_bytes(), password=None)


def pem(name):
    return (KEYS / f"test-only-{name}.pem").read_text()


def bare(text):
    """What the providers' consoles show: base64 without its frame."""
    return "".join(line for line in text.splitlines() if not line.startswith("-----"))


def pkcs1(name):
    return bare(private_pem(load(name), serialization.PrivateFormat.TraditionalOpenSSL).decode())


def public_pem(name):
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return load(name).public_key().public_bytes(serialization.Encoding.PEM, form).decode()


def certificate(which):
    return pem(f"wechat-platform-{which}-certificate")


# ---------------------------------------------------------------------------------------------------- shared words


def money(amount, currency="CNY"):
    return {"amount": amount, "currency": currency}


def captured(event_id, capture_id, amount, payment_id=PAYMENT):
    return {"event_id": event_id, "captured": {"capture_id": capture_id, "payment_id": payment_id, "amount": amount}}


def refunded(event_id, capture_id, payment_id=PAYMENT, refund_id=REFUND, **amount):
    refund = {"capture_id": capture_id, "payment_id": payment_id, "refund_id": refund_id, **amount}
    return {"event_id": event_id, "refunded": refund}


def refund_failed(event_id, capture_id, is_final, payment_id=PAYMENT, refund_id=REFUND, **amount):
    refund = {"capture_id": capture_id, "payment_id": payment_id, "refund_id": refund_id, **amount}
    return {"event_id": event_id, "refund_failed": {**refund, "is_final": is_final}}


def other(event_id, kind):
    return {"event_id": event_id, "other": kind}


def refused(code):
    return {"refused": code}


def asked(verify, *arguments):
    """What the SDK says: whether it accepts, else in its words."""
    try:
        return {"accepts": True} if verify(*arguments) else {"accepts": False, "says": "false"}
    except Exception as error:  # whatever it raises is its way to refuse
        return {"accepts": False, "says": type(error).__name__}


def vector(provider, name, headers, body, sdk, expect, stricter=None):
    told = {"provider": provider, "name": name, "headers": headers, "body": body, "sdk": sdk, "expect": expect}
    accepted = "refused" not in expect
    if accepted and not sdk["accepts"]:
        raise SystemExit(f"{provider}, {name}: the SDK refuses what we would accept")
    if (sdk["accepts"] and not accepted) != (stricter is not None):
        raise SystemExit(f"{provider}, {name}: `stricter` and the SDK's verdict do not go together ({sdk})")
    return {**told, "stricter": stricter} if stricter else told


# ---------------------------------------------------------------------------------------------------- Stripe


def stripe_event(kind, obj, event_id="evt_1QTestOnly0000000000001", **changes):
    event = {
        "id": event_id,
        "object": "event",
        "api_version": "2026-10-28.endive",
        "created": NOW_S - 5,
        "data": {"object": obj},
        "livemode": False,
        "pending_webhooks": 1,
        "request": {"id": "req_testonly", "idempotency_key": f"start-{PAYMENT}"},
        "type": kind,
    }
    return json.dumps({**event, **changes}, indent=2)


def payment_intent(amount=149900, currency="cny", **changes):
    intent = {
        "id": "pi_3QTestOnly0000000000001",
        "object": "payment_intent",
        "amount": amount,
        "amount_capturable": 0,
        "amount_received": amount,
        "capture_method": "automatic_async",
        "created": NOW_S - 60,
        "currency": currency,
        "description": None,
        "latest_charge": "ch_3QTestOnly0000000000001",
        "livemode": False,
        "metadata": {"doorbuster_shop": SHOP, "doorbuster_payment": PAYMENT},
        "status": "succeeded",
    }
    return {**intent, **changes}


def stripe_refund(status="succeeded", **changes):
    refund = {
        "id": "re_3QTestOnly0000000000001",
        "object": "refund",
        "amount": 149900,
        "charge": "ch_3QTestOnly0000000000001",
        "created": NOW_S - 10,
        "currency": "cny",
        "metadata": {"doorbuster_shop": SHOP, "doorbuster_payment": PAYMENT, "doorbuster_refund": REFUND},
        "payment_intent": "pi_3QTestOnly0000000000001",
        "reason": None,
        "status": status,
    }
    return {**refund, **changes}


def stripe_header(body, secret=STRIPE_SECRETS[0], at=NOW_S):
    return stripe.WebhookSignature.generate_signature_header(body, secret, at)


def stripe_accepts(body, header):
    def verify(secret):
        with mock.patch("time.time", return_value=NOW_S):
            return asked(stripe.Webhook.construct_event, body, header, secret)

    verdicts = [verify(secret) for secret in STRIPE_SECRETS]
    return next((verdict for verdict in verdicts if verdict["accepts"]), verdicts[0])


def stripe_vectors():
    event, intent = "evt_1QTestOnly0000000000001", "pi_3QTestOnly0000000000001"
    vectors = []

    def add(name, body, expect, header=None, stricter=None):
        header = stripe_header(body) if header is None else header
        headers = [["Stripe-Signature", header]] if header else []
        sdk = stripe_accepts(body, header)
        vectors.append(vector("stripe", name, headers, body, sdk, expect, stricter))

    good = stripe_event("payment_intent.succeeded", payment_intent())
    paid = captured(event, intent, money(149900))
    signature = stripe_header(good).split("v1=")[1]
    wrong = "0" * 64
    add("a payment", good, paid)
    add("signed with the previous secret", good, paid, stripe_header(good, STRIPE_SECRETS[1]))
    both = stripe_header(good, STRIPE_SECRETS[1]) + f",v1={signature}"
    add("two signatures during a change of secrets", good, paid, both)
    add("a wrong signature beside the right one", good, paid, f"t={NOW_S},v1={wrong},v1={signature}")
    add("another scheme beside", good, paid, f"t={NOW_S},v0={wrong},v1={signature},v2=x")
    add("five minutes old", good, paid, stripe_header(good, at=NOW_S - 300))
    yen = payment_intent(1500, "jpy")
    add("yen have no decimals", stripe_event("payment_intent.succeeded", yen), captured(event, intent, money(1500, "JPY")))
    kronur = payment_intent(150000, "isk")
    add("krónur have two at Stripe and none at home", stripe_event("payment_intent.succeeded", kronur), captured(event, intent, money(1500, "ISK")))
    add("a title beyond ASCII", stripe_event("payment_intent.succeeded", payment_intent(description="飞天 53°")), paid)
    add("somebody else's payment", stripe_event("payment_intent.succeeded", payment_intent(metadata={})), other(event, "payment_intent.succeeded"))
    another = {"doorbuster_shop": "f" * 32, "doorbuster_payment": PAYMENT}
    add("another shop's payment", stripe_event("payment_intent.succeeded", payment_intent(metadata=another)), other(event, "payment_intent.succeeded"))
    nameless = {"doorbuster_payment": PAYMENT}
    add("a payment of a shop without a name", stripe_event("payment_intent.succeeded", payment_intent(metadata=nameless)), other(event, "payment_intent.succeeded"))
    add("an event of no interest", stripe_event("customer.created", {"id": "cus_1", "object": "customer"}), other(event, "customer.created"))
    charge = {"id": "ch_3QTestOnly0000000000001", "object": "charge", "amount": 149900, "amount_refunded": 50000, "currency": "cny",
              "metadata": {"doorbuster_shop": SHOP, "doorbuster_payment": PAYMENT}, "payment_intent": intent, "refunded": False}
    add("a charge, in part refunded", stripe_event("charge.refunded", charge), refunded(event, intent, refund_id=None, so_far=money(50000)))
    add("another shop's charge", stripe_event("charge.refunded", {**charge, "metadata": another}), other(event, "charge.refunded"))
    add("a refund, done", stripe_event("refund.updated", stripe_refund()), refunded(event, intent, this=money(149900)))
    add("a refund, done at once", stripe_event("refund.created", stripe_refund()), refunded(event, intent, this=money(149900)))
    add("a refund by hand", stripe_event("refund.updated", stripe_refund(metadata={})), refunded(event, intent, payment_id=None, refund_id=None, this=money(149900)))
    add("another shop's refund", stripe_event("refund.updated", stripe_refund(metadata=another)), other(event, "refund.updated"))
    failed = stripe_refund("failed", failure_reason="lost_or_stolen_card")
    add("a refund, failed", stripe_event("refund.failed", failed), refund_failed(event, intent, True, this=money(149900)))
    add("a refund, under way", stripe_event("refund.updated", stripe_refund("pending")), other(event, "refund.updated"))

    bad = refused("signature_invalid")
    add("another body under the same signature", good.replace("149900", "1"), bad, stripe_header(good))
    add("a space more", good + " ", bad, stripe_header(good))
    add("cut off", good[:-20], bad, stripe_header(good))
    add("a stranger's secret", good, bad, stripe_header(good, "whsec_test_only_stranger_0123456789abcdef"))
    add("another time under the same signature", good, bad, f"t={NOW_S + 1},v1={signature}")
    add("signature in capitals", good, bad, f"t={NOW_S},v1={signature.upper()}")
    add("signature cut off", good, bad, f"t={NOW_S},v1={signature[:-2]}")
    add("only an old scheme", good, bad, f"t={NOW_S},v0={signature}")
    add("an empty signature", good, bad, f"t={NOW_S},v1=")
    add("no header", good, refused("malformed"), "")
    add("a header of nonsense", good, refused("malformed"), "nonsense")
    add("no time", good, refused("malformed"), f"v1={signature}")
    add("a time that is no number", good, refused("malformed"), f"t=now,v1={signature}")
    add("a time twice", good, refused("malformed"), f"t={NOW_S},t={NOW_S},v1={signature}", "two times could be read in two ways")
    old = refused("notification_stale")
    add("too old", good, old, stripe_header(good, at=NOW_S - 301))
    add("from the future", good, old, stripe_header(good, at=NOW_S + 301), "the SDK looks only at the past")
    account = refused("wrong_merchant")
    add("live money for a test key", stripe_event("payment_intent.succeeded", payment_intent(), livemode=True), account, stricter="the SDK does not know the key's mode")
    add("a connected account", stripe_event("payment_intent.succeeded", payment_intent(), account="acct_1Other"), account, stricter="the SDK leaves accounts to the shop")
    shape = refused("malformed")
    fields = "the SDK checks no fields"
    for name, changes in {"a negative amount": {"amount_received": -1}, "no amount at all": {"amount_received": 0}, "a fraction of a cent": {"amount_received": 1.999},
                          "an amount as text": {"amount_received": "149900"}, "an empty amount": {"amount_received": ""}, "an amount in exponents": {"amount_received": 1e30},
                          "no such currency": {"currency": "rmb"}, "not succeeded": {"status": "processing"}}.items():
        add(name, stripe_event("payment_intent.succeeded", payment_intent(**changes)), shape, stricter=fields)
    add("no event but a list", "[]", shape)
    add("no JSON", "pay me", shape)
    return vectors


# ---------------------------------------------------------------------------------------------------- Alipay


def alipay_parameters(**changes):
    parameters = {
        "gmt_create": "2026-12-01 19:58:00",
        "charset": "utf-8",
        "gmt_payment": "2026-12-01 19:59:55",
        "notify_time": "2026-12-01 19:59:56",
        "subject": "飞天 53° 500ml + 礼盒 100% (a=b&c)",
        "buyer_id": "2088000000000099",
        "invoice_amount": "1499.00",
        "version": "1.0",
        "notify_id": "2026120100222195956000990000000001",
        "fund_bill_list": '[{"amount":"1499.00","fundChannel":"ALIPAYACCOUNT"}]',
        "notify_type": "trade_status_sync",
        "out_trade_no": PAYMENT,
        "total_amount": "1499.00",
        "trade_status": "TRADE_SUCCESS",
        "trade_no": "2026120122001499990000000001",
        "auth_app_id": ALIPAY_APP,
        "receipt_amount": "1490.01",
        "point_amount": "0.00",
        "buyer_pay_amount": "1499.00",
        "app_id": ALIPAY_APP,
        "seller_id": ALIPAY_SELLER,
        "sign_type": "RSA2",
    }
    return {name: value for name, value in {**parameters, **changes}.items() if value is not None}


def alipay_sign(parameters, key="alipay-platform"):
    signed = {name: value for name, value in parameters.items() if name not in ("sign", "sign_type")}
    content = alipay_signatures.get_sign_content(signed)
    return {**parameters, "sign": alipay_signatures.sign_with_rsa2(pkcs1(key), content, "utf-8")}


def alipay_accepts(body):
    def verify():
        parameters = dict(urllib.parse.parse_qsl(body, keep_blank_values=True, encoding="utf-8", errors="strict"))
        sign = parameters.pop("sign")
        parameters.pop("sign_type", None)
        content = alipay_signatures.get_sign_content(parameters).encode("utf-8")
        return alipay_signatures.verify_with_rsa(bare(public_pem("alipay-platform")), content, sign)

    return asked(verify)


def alipay_vectors():
    event, trade = "2026120100222195956000990000000001", "2026120122001499990000000001"
    vectors = []

    def add(name, parameters, expect, stricter=None, key="alipay-platform", change=None):
        signed = alipay_sign(parameters, key)
        if change:
            signed = {name: value for name, value in {**signed, **change}.items() if value is not None}
        body = urllib.parse.urlencode(signed)
        vectors.append(vector("alipay", name, [], body, alipay_accepts(body), expect, stricter))

    good = alipay_parameters()
    paid = captured(event, trade, money(149900))
    add("a payment", good, paid)
    add("a payment that can no longer be refunded", alipay_parameters(trade_status="TRADE_FINISHED"), paid)
    add("whole yuan", alipay_parameters(total_amount="20"), captured(event, trade, money(2000)))
    add("one decimal", alipay_parameters(total_amount="20.5"), captured(event, trade, money(2050)))
    add("an empty parameter", alipay_parameters(body=""), paid)
    add("sent again a day later", alipay_parameters(notify_time="2026-11-30 19:00:00"), paid)
    refund = {"refund_fee": "500.00", "out_biz_no": REFUND, "gmt_refund": "2026-12-01 19:59:58.250"}
    # Money is money, whenever it came: nothing depends on these times.
    for name, told in {"no time of payment": None, "a time of another form": "2026-12-01T19:59:55Z", "a day that does not exist": "2026-02-30 19:59:55"}.items():
        add(name, alipay_parameters(gmt_payment=told), paid)
    add("a refund of a part", alipay_parameters(**refund), refunded(event, trade, so_far=money(50000)))
    add("a refund without its time", alipay_parameters(**{**refund, "gmt_refund": None}), refunded(event, trade, so_far=money(50000)))
    add("a refund of all", alipay_parameters(**{**refund, "refund_fee": "1499.00"}, trade_status="TRADE_CLOSED", gmt_close="2026-12-01 19:59:58"),
        refunded(event, trade, so_far=money(149900)))
    add("a refund by hand", alipay_parameters(**{**refund, "out_biz_no": None}), refunded(event, trade, refund_id=None, so_far=money(50000)))
    add("closed without money", alipay_parameters(trade_status="TRADE_CLOSED", gmt_payment=None), other(event, "TRADE_CLOSED"))
    add("waiting for the buyer", alipay_parameters(trade_status="WAIT_BUYER_PAY", gmt_payment=None), other(event, "WAIT_BUYER_PAY"))

    bad = refused("signature_invalid")
    add("another amount under the same signature", good, bad, change={"total_amount": "0.01"})
    add("a parameter more", good, bad, change={"body": "x"})
    add("a parameter less", good, bad, change={"buyer_id": None})
    add("a stranger's key", good, bad, key="stranger")
    add("signed with the application's own key", good, bad, key="alipay-app")
    add("a signature of nonsense", good, bad, change={"sign": "bm9uc2Vuc2U="})
    add("a signature that is no base64", good, bad, change={"sign": "!"})
    add("an empty signature", good, bad, change={"sign": ""})
    add("no signature", good, refused("malformed"), change={"sign": None})
    signatures = "the SDK's check is told the algorithm by its caller"
    add("another algorithm", alipay_parameters(sign_type="RSA"), bad, signatures)
    add("no algorithm", alipay_parameters(sign_type=None), bad, signatures)
    charset = "the SDK's check is told the charset by its caller"
    add("another charset", alipay_parameters(charset="GBK"), refused("malformed"), charset)
    merchant = "the SDK leaves the merchant to the shop"
    add("another application", alipay_parameters(app_id="2021000000000002"), refused("wrong_merchant"), merchant)
    add("another seller", alipay_parameters(seller_id="2088000000000002"), refused("wrong_merchant"), merchant)
    add("no seller", alipay_parameters(seller_id=None), refused("wrong_merchant"), merchant)
    times = "the SDK does not look at times"
    add("three days old", alipay_parameters(notify_time="2026-11-28 19:59:56"), refused("notification_stale"), times)
    add("from the future", alipay_parameters(notify_time="2026-12-01 20:05:01"), refused("notification_stale"), times)
    fields = "the SDK checks no fields"
    for name, changes in {"a third decimal": {"total_amount": "1.999"}, "a negative amount": {"total_amount": "-1"}, "an amount in exponents": {"total_amount": "1e3"},
                          "an empty amount": {"total_amount": ""}, "no amount at all": {"total_amount": "0.00"}, "thousands with commas": {"total_amount": "1,499.00"},
                          "an amount with a space": {"total_amount": " 1499.00"}, "a missing amount": {"total_amount": None},
                          "a refund below zero": {"refund_fee": "-5.00", "gmt_refund": "2026-12-01 19:59:58"},
                          "a time of sending of another form": {"notify_time": "2026-12-01T19:59:56Z"}, "no time of sending": {"notify_time": None},
                          "no number of the trade": {"trade_no": None}, "an empty number of the payment": {"out_trade_no": ""},
                          "a day of sending that does not exist": {"notify_time": "2026-02-30 19:59:56"}}.items():
        add(name, alipay_parameters(**changes), refused("malformed"), fields)
    return vectors


# ---------------------------------------------------------------------------------------------------- WeChat Pay


def wechat_sdk(public_key=False):
    folder = tempfile.mkdtemp()
    for which in WECHAT_PLATFORM:
        pathlib.Path(folder, f"{which}.pem").write_text(certificate(which))
    key = {"public_key": public_pem("wechat-public-key"), "public_key_id": WECHAT_KEY_ID} if public_key else {"cert_dir": folder}
    # Without this it would ask WeChat Pay for certificates it does not know.
    with mock.patch.object(wechat_core.Core, "_update_certificates", lambda self: None):
        return WeChatPay(wechatpay_type=WeChatPayType.NATIVE, mchid=WECHAT_MCHID, private_key=pem("wechat-merchant"),
                         cert_serial_no=WECHAT_MERCHANT_SERIAL, apiv3_key=WECHAT_SEAL, appid=WECHAT_APPID,
                         notify_url="https://shop.example/api/v1/payments/wechat/callback", **key)


def wechat_serial(which):
    return f"{WECHAT_PLATFORM[which]:040X}"


def transaction(**changes):
    paid = {
        "mchid": WECHAT_MCHID,
        "appid": WECHAT_APPID,
        "out_trade_no": PAYMENT,
        "transaction_id": "4200000000202612010000000001",
        "trade_type": "NATIVE",
        "trade_state": "SUCCESS",
        "trade_state_desc": "支付成功",
        "bank_type": "OTHERS",
        "attach": "",
        "success_time": "2026-12-01T19:59:55+08:00",
        "payer": {"openid": "oTestOnly000000000000000001"},
        "amount": {"total": 149900, "payer_total": 149900, "currency": "CNY", "payer_currency": "CNY"},
    }
    return {name: value for name, value in {**paid, **changes}.items() if value is not None}


def wechat_refund(status="SUCCESS", **changes):
    refund = {
        "mchid": WECHAT_MCHID,
        "transaction_id": "4200000000202612010000000001",
        "out_trade_no": PAYMENT,
        "refund_id": "50300000002026120100000000001",
        "out_refund_no": REFUND,
        "refund_status": status,
        "success_time": "2026-12-01T19:59:58+08:00",
        "user_received_account": "支付用户零钱",
        "amount": {"total": 149900, "refund": 50000, "payer_total": 149900, "payer_refund": 50000},
    }
    if status != "SUCCESS":
        del refund["success_time"]
    return {**refund, **changes}


def sealed(content, associated="transaction", seal=WECHAT_SEAL, algorithm="AEAD_AES_256_GCM", original="transaction"):
    nonce = "testonlynonc"
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    closed = AESGCM(seal.encode()).encrypt(nonce.encode(), text.encode(), associated.encode())
    return {"original_type": original, "algorithm": algorithm, "ciphertext": base64.b64encode(closed).decode(),
            "associated_data": associated, "nonce": nonce}


def envelope(kind, resource, **changes):
    told = {"id": "5d27d9ee-0000-5c0b-8c5e-000000000001", "create_time": "2026-12-01T19:59:56+08:00", "resource_type": "encrypt-resource",
            "event_type": kind, "summary": "支付成功", "resource": resource}
    return json.dumps({**told, **changes}, ensure_ascii=False)


def wechat_headers(body, key="wechat-platform-current", serial=None, at=NOW_S, nonce=NONCE, **changes):
    signature = wechat_utils.rsa_sign(load(key), f"{at}\n{nonce}\n{body}\n")
    headers = {"Wechatpay-Timestamp": str(at), "Wechatpay-Nonce": nonce, "Wechatpay-Signature": signature,
               "Wechatpay-Serial": serial or wechat_serial("current"), "Wechatpay-Signature-Type": "WECHATPAY2-SHA256-RSA2048"}
    changes = {name.replace("_", "-"): value for name, value in changes.items()}
    return [[name, value] for name, value in {**headers, **changes}.items() if value is not None]


def wechat_accepts(headers, body):
    headers = dict(headers)
    sdk = wechat_sdk(public_key=headers.get("Wechatpay-Serial", "").startswith("PUB_KEY_ID_"))
    with mock.patch.object(wechat_core.Core, "_update_certificates", lambda self: None):
        return asked(sdk.callback, headers, body)


def wechat_vectors():
    event, capture = "5d27d9ee-0000-5c0b-8c5e-000000000001", "4200000000202612010000000001"
    vectors = []

    def add(name, body, expect, headers=None, stricter=None):
        headers = wechat_headers(body) if headers is None else headers
        vectors.append(vector("wechat", name, headers, body, wechat_accepts(headers, body), expect, stricter))

    def success(**changes):
        return envelope("TRANSACTION.SUCCESS", sealed(transaction(**changes)))

    good = success()
    paid = captured(event, capture, money(149900))
    add("a payment", good, paid)
    previous = wechat_headers(good, "wechat-platform-previous", wechat_serial("previous"))
    add("signed with the previous certificate", good, paid, previous)
    short = wechat_headers(good, "wechat-platform-previous", f"{WECHAT_PLATFORM['previous']:X}")
    add("a serial number without its zeros", good, paid, short)
    add("signed with a public key", good, paid, wechat_headers(good, "wechat-public-key", WECHAT_KEY_ID))
    add("five minutes old", good, paid, wechat_headers(good, at=NOW_S - 300))
    add("sealed without associated data", envelope("TRANSACTION.SUCCESS", sealed(transaction(), associated="")), paid)
    add("no time of payment", success(success_time=None), paid)
    refund = {"associated": "refund", "original": "refund"}
    add("a refund, done", envelope("REFUND.SUCCESS", sealed(wechat_refund(), **refund)), refunded(event, capture, this=money(50000)))
    add("a refund without its time", envelope("REFUND.SUCCESS", sealed(wechat_refund(success_time=None), **refund)), refunded(event, capture, this=money(50000)))
    add("a refund, abnormal", envelope("REFUND.ABNORMAL", sealed(wechat_refund("ABNORMAL"), **refund)), refund_failed(event, capture, False, this=money(50000)))
    add("a refund, closed", envelope("REFUND.CLOSED", sealed(wechat_refund("CLOSED"), **refund)), refund_failed(event, capture, True, this=money(50000)))
    add("an event of no interest", envelope("PAYSCORE.USER_PAID", sealed({"state": "DONE"}, "payscore")), other(event, "PAYSCORE.USER_PAID"))

    bad = refused("signature_invalid")
    add("another body under the same signature", success(out_trade_no="01jdz0payment0000000000002"), bad, wechat_headers(good))
    add("a space more", good + " ", bad, wechat_headers(good))
    add("cut off", good[:-30], bad, wechat_headers(good))
    add("another time under the same signature", good, bad, wechat_headers(good, Wechatpay_Timestamp=str(NOW_S + 1)))
    add("another nonce under the same signature", good, bad, wechat_headers(good, Wechatpay_Nonce="f" * 32))
    add("a stranger's key", good, bad, wechat_headers(good, "stranger"))
    add("signed by the merchant", good, bad, wechat_headers(good, "wechat-merchant"))
    add("the other certificate's key", good, bad, wechat_headers(good, "wechat-platform-previous"))
    add("WeChat Pay's own test of our check", good, bad, wechat_headers(good, Wechatpay_Signature="WECHATPAY/SIGNTEST/" + "A" * 320 + "=="))
    add("an empty signature", good, bad, wechat_headers(good, Wechatpay_Signature=""))
    add("another algorithm", good, bad, wechat_headers(good, Wechatpay_Signature_Type="WECHATPAY2-SM2-WITH-SM3"))
    add("sealed with another key", envelope("TRANSACTION.SUCCESS", sealed(transaction(), seal="another-apiv3-key-0123456789abcd")), bad)
    tampered = sealed(transaction())
    add("other associated data", envelope("TRANSACTION.SUCCESS", {**tampered, "associated_data": "refund"}), bad)
    add("another nonce of the seal", envelope("TRANSACTION.SUCCESS", {**tampered, "nonce": "testonlynonx"}), bad)
    add("a nonce of the seal that is too short", envelope("TRANSACTION.SUCCESS", {**tampered, "nonce": "short"}), bad)
    add("another seal", envelope("TRANSACTION.SUCCESS", {**tampered, "algorithm": "AEAD_SM4_GCM"}), bad)
    add("a seal that is no base64", envelope("TRANSACTION.SUCCESS", {**tampered, "ciphertext": "!"}), bad)
    add("an empty seal", envelope("TRANSACTION.SUCCESS", {**tampered, "ciphertext": ""}), bad)
    add("an unknown certificate", good, refused("unknown_certificate"), wechat_headers(good, "stranger", "7" * 40))
    add("an unknown public key", good, refused("unknown_certificate"), wechat_headers(good, "wechat-public-key", "PUB_KEY_ID_0"))
    for header in ["Timestamp", "Nonce", "Signature", "Serial"]:
        add(f"no {header.lower()}", good, refused("malformed"), wechat_headers(good, **{f"Wechatpay_{header}": None}))
    add("a time that is no number", good, refused("malformed"), wechat_headers(good, at="now"), "the SDK does not look at times")
    times = "the SDK does not look at times"
    add("too old", good, refused("notification_stale"), wechat_headers(good, at=NOW_S - 301), times)
    add("from the future", good, refused("notification_stale"), wechat_headers(good, at=NOW_S + 301), times)
    merchant = "the SDK leaves the merchant to the shop"
    add("another merchant", success(mchid="1900000002"), refused("wrong_merchant"), stricter=merchant)
    add("another application", success(appid="wx0000000000000002"), refused("wrong_merchant"), stricter=merchant)
    elsewhere = sealed(wechat_refund(mchid="1900000002"), **refund)
    add("another merchant's refund", envelope("REFUND.SUCCESS", elsewhere), refused("wrong_merchant"), stricter=merchant)
    fields = "the SDK checks no fields"
    for name, amount in {"a fraction of a fen": 1.999, "a negative amount": -1, "an amount in exponents": 1e30, "an amount as text": "149900",
                         "an empty amount": "", "no amount at all": 0}.items():
        add(name, success(amount={"total": amount, "currency": "CNY"}), refused("malformed"), stricter=fields)
    add("no such currency", success(amount={"total": 1, "currency": "RMB"}), refused("malformed"), stricter=fields)
    add("not paid", success(trade_state="NOTPAY"), refused("malformed"), stricter=fields)
    add("no JSON inside", envelope("TRANSACTION.SUCCESS", sealed("paid")), refused("malformed"))
    add("no JSON", "paid", refused("malformed"))
    return vectors


# ---------------------------------------------------------------------------------------------------- requests


TITLE = "Feitian 53 (飞天)"
NOTIFY = "https://shop.example/api/v1/payments/{}/callback"
RETURN = "https://shop.example/orders/01jdz0order000000000000001"


class Recorder(stripe.HTTPClient):
    """Stands in for the network: keeps the request, gives a prepared answer."""

    name = "recorder"

    def __init__(self, answer):
        super().__init__()
        self.answer, self.seen = answer, None

    def request(self, method, url, headers, post_data=None):
        self.seen = {"method": method.upper(), "url": url, "headers": dict(headers), "body": post_data or ""}
        return json.dumps(self.answer), 200, {}

    def close(self):
        pass


def request(provider, verb, seen, answer=None):
    wanted = ("authorization", "idempotency-key", "stripe-version", "content-type", "accept", "wechatpay-serial")
    headers = {name.lower(): value for name, value in seen["headers"].items() if name.lower() in wanted}
    told = {"provider": provider, "verb": verb, "method": seen["method"], "url": seen["url"], "headers": headers, "body": seen["body"]}
    return {**told, "answer": answer} if answer else told


def answer(status, body, headers=()):
    return {"status": status, "headers": list(headers), "body": body}


def stripe_requests():
    def call(answer, use):
        recorder = Recorder(answer)
        use(stripe.StripeClient(STRIPE_KEY, http_client=recorder).v1)
        return recorder.seen

    session = {"id": "cs_test_only_1", "object": "checkout.session", "url": "https://checkout.stripe.com/c/pay/cs_test_only_1", "status": "open",
               "payment_status": "unpaid", "client_reference_id": PAYMENT, "amount_total": 149900, "currency": "cny", "payment_intent": None}
    ours = {"doorbuster_shop": SHOP, "doorbuster_payment": PAYMENT}
    parameters = {
        "mode": "payment", "client_reference_id": PAYMENT, "success_url": RETURN, "cancel_url": RETURN, "expires_at": NOW_S + 31 * 60,
        "line_items": [{"quantity": 1, "price_data": {"currency": "cny", "unit_amount": 149900, "product_data": {"name": TITLE}}}],
        "metadata": ours, "payment_intent_data": {"metadata": ours},
    }
    yield request("stripe", "start", call(session, lambda v1: v1.checkout.sessions.create(parameters, {"idempotency_key": f"start-{PAYMENT}-{NOW_S}"})),
                  answer(200, json.dumps(session)))
    expired = {**session, "status": "expired", "url": None}
    yield request("stripe", "close", call(expired, lambda v1: v1.checkout.sessions.expire("cs_test_only_1", {}, {"idempotency_key": f"close-cs_test_only_1-{NOW_S}"})),
                  answer(200, json.dumps(expired)))
    paid = {**session, "status": "complete", "payment_status": "paid", "url": None, "payment_intent": "pi_3QTestOnly0000000000001"}
    yield request("stripe", "ask", call(paid, lambda v1: v1.checkout.sessions.retrieve("cs_test_only_1")), answer(200, json.dumps(paid)))
    refund = {"payment_intent": "pi_3QTestOnly0000000000001", "amount": 149900, "metadata": {**ours, "doorbuster_refund": REFUND}}
    yield request("stripe", "refund", call(stripe_refund(), lambda v1: v1.refunds.create(refund, {"idempotency_key": f"refund-{REFUND}"})),
                  answer(200, json.dumps(stripe_refund())))
    yield request("stripe", "ask_refund", call(stripe_refund(), lambda v1: v1.refunds.retrieve("re_3QTestOnly0000000000001")),
                  answer(200, json.dumps(stripe_refund())))


def alipay_requests():
    config = AlipayClientConfig()
    config.server_url = "https://openapi.alipay.com/gateway.do"
    config.app_id, config.charset, config.sign_type = ALIPAY_APP, "utf-8", "RSA2"
    config.app_private_key, config.alipay_public_key = pkcs1("alipay-app"), bare(public_pem("alipay-platform"))
    config.format = "JSON"
    client = alipay_client.DefaultAlipayClient(config)
    beijing = datetime.datetime(2026, 12, 1, 20, 0, 0)
    clock = types.SimpleNamespace(datetime=types.SimpleNamespace(now=lambda: beijing))

    def built(kind, content, **addresses):
        made = kind()
        made.biz_content = content
        for name, value in addresses.items():
            setattr(made, name, value)
        return made

    def page(verb, kind, product):
        content = {"out_trade_no": PAYMENT, "product_code": product, "total_amount": "1499.00", "subject": TITLE, "time_expire": "2026-12-01 20:15:00"}
        made = built(kind, content, notify_url=NOTIFY.format("alipay"), return_url=RETURN)
        with mock.patch.object(alipay_client, "datetime", clock):
            url = client.page_execute(made, http_method="GET")
        return request("alipay", verb, {"method": "GET", "url": url, "headers": {}, "body": ""})

    def call(verb, kind, content, node, told):
        signed = json.dumps({"code": "10000", "msg": "Success", **told}, ensure_ascii=False)
        sign = alipay_signatures.sign_with_rsa2(pkcs1("alipay-platform"), signed, "utf-8")
        body = f'{{"{node}":{signed},"sign":"{sign}"}}'
        seen = {}

        def do_post(url, query_string, headers, params, charset, timeout):
            seen.update(method="POST", url=f"{url}?{query_string}", headers=headers, body=urllib.parse.urlencode(params))
            return body.encode()

        with mock.patch.object(alipay_client, "datetime", clock), mock.patch.object(alipay_client, "do_post", do_post):
            if json.loads(client.execute(built(kind, content))) != json.loads(signed):
                raise SystemExit(f"alipay, {verb}: the SDK reads another answer")
        return request("alipay", verb, seen, answer(200, body))

    trade = {"trade_no": "2026120122001499990000000001", "out_trade_no": PAYMENT}
    yield page("start", AlipayTradePagePayRequest, "FAST_INSTANT_TRADE_PAY")
    yield page("start_phone", AlipayTradeWapPayRequest, "QUICK_WAP_WAY")
    yield call("close", AlipayTradeCloseRequest, {"out_trade_no": PAYMENT}, "alipay_trade_close_response", trade)
    yield call("ask", AlipayTradeQueryRequest, {"out_trade_no": PAYMENT}, "alipay_trade_query_response",
               {**trade, "trade_status": "TRADE_SUCCESS", "total_amount": "1499.00", "send_pay_date": "2026-12-01 19:59:55", "subject": "飞天 }\\\" 53°"})
    refund = {"trade_no": trade["trade_no"], "out_request_no": REFUND, "refund_amount": "500.00", "refund_reason": "sold out"}
    yield call("refund", AlipayTradeRefundRequest, refund, "alipay_trade_refund_response", {**trade, "fund_change": "Y", "refund_fee": "500.00"})
    query = {"trade_no": trade["trade_no"], "out_request_no": REFUND}
    yield call("ask_refund", AlipayTradeFastpayRefundQueryRequest, query, "alipay_trade_fastpay_refund_query_response",
               {**trade, "out_request_no": REFUND, "refund_status": "REFUND_SUCCESS", "refund_amount": "500.00"})


def wechat_requests():
    def call(verb, status, told, use):
        body = json.dumps(told, ensure_ascii=False) if told is not None else ""
        headers = wechat_headers(body, "wechat-public-key", WECHAT_KEY_ID)
        seen = {}

        def recorded(method):
            def send(url, headers, json=None, **_):
                text = "" if json is None else globals()["json"].dumps(json)
                seen.update(method=method, url=url, headers=headers, body=text)
                return types.SimpleNamespace(status_code=status, text=body, content=body.encode(), headers=dict(wechat_headers(body, "wechat-public-key", WECHAT_KEY_ID)))

            return send

        fixed = types.SimpleNamespace(uuid4=lambda: "01234567-89ab-cdef-0123-456789abcdef")
        with mock.patch.object(wechat_core.requests, "post", recorded("POST")), mock.patch.object(wechat_core.requests, "get", recorded("GET")), \
                mock.patch.object(wechat_utils.time, "time", lambda: NOW_S), mock.patch.object(wechat_utils, "uuid", fixed):
            use(wechat_sdk(public_key=True))
        return request("wechat", verb, seen, answer(status, body, headers))

    amount = {"total": 149900, "currency": "CNY"}
    order = {"description": TITLE, "out_trade_no": PAYMENT, "amount": amount, "time_expire": "2026-12-01T20:15:00+08:00", "notify_url": NOTIFY.format("wechat")}
    yield call("start", 200, {"code_url": "weixin://wxpay/bizpayurl?pr=testonly"}, lambda sdk: sdk.pay(**order, pay_type=WeChatPayType.NATIVE))
    scene = {"payer_client_ip": "203.0.113.7", "h5_info": {"type": "Wap"}}
    yield call("start_phone", 200, {"h5_url": "https://wx.tenpay.com/cgi-bin/mmpayweb-bin/checkmweb?prepay_id=testonly"},
               lambda sdk: sdk.pay(**order, scene_info=scene, pay_type=WeChatPayType.H5))
    yield call("close", 204, None, lambda sdk: sdk.close(PAYMENT))
    yield call("ask", 200, transaction(), lambda sdk: sdk.query(out_trade_no=PAYMENT))
    refund = {"refund": 50000, "total": 149900, "currency": "CNY"}
    told = {"refund_id": "50300000002026120100000000001", "out_refund_no": REFUND, "status": "PROCESSING", "amount": refund}
    yield call("refund", 200, told, lambda sdk: sdk.refund(out_refund_no=REFUND, amount=refund, transaction_id="4200000000202612010000000001", reason="sold out",
                                                           notify_url=NOTIFY.format("wechat")))
    yield call("ask_refund", 200, {**told, "status": "SUCCESS"}, lambda sdk: sdk.query_refund(REFUND))


# ---------------------------------------------------------------------------------------------------- answers


def answers():
    """Further answers, signed by the SDKs' functions, each with what it means."""

    def alipay(verb, expect, told, code="10000", key="alipay-platform"):
        node = {"close": "close", "ask": "query", "refund": "refund", "ask_refund": "fastpay_refund_query"}[verb]
        signed = json.dumps({"code": code, "msg": "said", **told}, ensure_ascii=False)
        sign = alipay_signatures.sign_with_rsa2(pkcs1(key), signed, "utf-8")
        body = f'{{"alipay_trade_{node}_response":{signed},"sign":"{sign}"}}'
        return {"provider": "alipay", "verb": verb, "expect": expect, "answer": answer(200, body)}

    def wechat(verb, expect, told, status=200, key="wechat-platform-current", serial=None):
        body = json.dumps(told, ensure_ascii=False)
        return {"provider": "wechat", "verb": verb, "expect": expect, "answer": answer(status, body, wechat_headers(body, key, serial))}

    trade = {"trade_no": "2026120122001499990000000001", "out_trade_no": PAYMENT, "total_amount": "1499.00"}
    yield alipay("ask", "unknown", {"sub_code": "ACQ.TRADE_NOT_EXIST"}, "40004")
    yield alipay("ask", "open", {**trade, "trade_status": "WAIT_BUYER_PAY"})
    yield alipay("ask", "closed", {**trade, "trade_status": "TRADE_CLOSED"})
    yield alipay("ask", "refunded", {**trade, "trade_status": "TRADE_CLOSED", "send_pay_date": "2026-12-01 19:59:55"})
    yield alipay("ask", "unbelievable", {**trade, "trade_status": "TRADE_SUCCESS", "total_amount": "1.999"})
    yield alipay("ask", "unbelievable", {**trade, "trade_status": "ODD"})
    yield alipay("ask", "unbelievable", {**trade, "trade_status": "WAIT_BUYER_PAY"}, key="stranger")
    yield alipay("close", "unknown", {"sub_code": "ACQ.TRADE_NOT_EXIST"}, "40004")
    yield alipay("close", "not_open", {"sub_code": "ACQ.TRADE_STATUS_ERROR"}, "40004")
    yield alipay("close", "refused", {"sub_code": "ACQ.INVALID_PARAMETER"}, "40004")
    yield alipay("close", "refused", {"sub_code": "ACQ.TRADE_NOT_EXIST"}, "40004", "stranger")
    yield alipay("refund", "pending", {**trade, "fund_change": "N"})
    yield alipay("refund", "refused", {"sub_code": "ACQ.SELLER_BALANCE_NOT_ENOUGH"}, "40004")
    yield alipay("refund", "try_again", {"sub_code": "ACQ.SYSTEM_ERROR"}, "40004")
    yield alipay("ask_refund", "try_again", {})
    yield alipay("ask_refund", "pending", {**trade, "refund_status": "REFUND_PROCESSING"})
    missing = {"code": "ORDER_NOT_EXIST", "message": "订单不存在"}
    yield wechat("ask", "unknown", missing, 404)
    yield wechat("ask", "refused", missing, 404, "stranger")
    for state, expect in {"NOTPAY": "open", "USERPAYING": "open", "CLOSED": "closed", "REVOKED": "closed", "REFUND": "refunded", "ODD": "unbelievable"}.items():
        yield wechat("ask", expect, transaction(trade_state=state, success_time=None))
    yield wechat("ask", "unbelievable", transaction(mchid="1900000002"))
    yield wechat("ask", "unbelievable", transaction(), key="stranger")
    yield wechat("ask", "unbelievable", transaction(), key="stranger", serial="7" * 40)
    yield wechat("close", "not_open", {"code": "ORDERPAID", "message": "订单已支付"}, 400)
    yield wechat("close", "closed", {"code": "ORDER_CLOSED", "message": "订单已关闭"}, 400)
    yield wechat("close", "unknown", missing, 404)
    yield wechat("close", "refused", {"code": "PARAM_ERROR", "message": "参数错误"}, 400)
    yield wechat("refund", "refused", {"code": "NOT_ENOUGH", "message": "余额不足"}, 403)
    for state, expect in {"SUCCESS": "done", "PROCESSING": "pending", "CLOSED": "failed for good", "ABNORMAL": "failed", "ODD": "unbelievable"}.items():
        yield wechat("ask_refund", expect, {"refund_id": "50300000002026120100000000001", "status": state})


# ---------------------------------------------------------------------------------------------------- all of it


def main():
    time.tzset()
    make_keys()
    settings = {
        "stripe": {"secret_key": STRIPE_KEY, "webhook_secrets": STRIPE_SECRETS, "url": "https://api.stripe.com"},
        "alipay": {"app_id": ALIPAY_APP, "seller_id": ALIPAY_SELLER, "private_key": pkcs1("alipay-app"), "public_key": bare(public_pem("alipay-platform")),
                   "url": "https://openapi.alipay.com/gateway.do"},
        "wechat": {"mchid": WECHAT_MCHID, "appid": WECHAT_APPID, "certificate_serial": WECHAT_MERCHANT_SERIAL, "private_key": pem("wechat-merchant"),
                   "api_v3_key": WECHAT_SEAL, "url": "https://api.mch.weixin.qq.com",
                   "platform_keys": [certificate("current"), certificate("previous"), f"{WECHAT_KEY_ID}:{public_pem('wechat-public-key')}"]},
    }
    written = {
        "made_with": [line for line in (HERE / "requirements.txt").read_text().splitlines() if "==" in line],
        "now_ms": NOW_MS,
        "payment_id": PAYMENT,
        "refund_id": REFUND,
        "shop": SHOP,
        "settings": settings,
        "alipay_app_public_key": public_pem("alipay-app"),
        "short_public_key": public_pem("too-short"),
        "notifications": stripe_vectors() + alipay_vectors() + wechat_vectors(),
        "requests": [*stripe_requests(), *alipay_requests(), *wechat_requests()],
        "answers": list(answers()),
    }
    text = json.dumps(written, indent=1, ensure_ascii=False) + "\n"
    path = HERE / "vectors.json"
    if "--check" in sys.argv[1:]:
        if not path.exists() or path.read_text() != text:
            raise SystemExit("vectors.json is not what make.py writes")
    else:
        path.write_text(text)
    print(f"{len(written['notifications'])} notifications, {len(written['requests'])} requests, {len(written['answers'])} answers")


main()
