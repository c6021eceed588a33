//! Which webhooks an operator may name: the address and the types of events. Owns what is refused and why; whether a
//! name leads inside is judged again when it is looked up, for every connection (see the guard).

use reqwest::Url;

use super::trial;
use crate::guard::names_private_address;

/// Longest address, in characters.
pub const URL_CHARS_MAX: usize = 2_000;

/// Most types that a webhook may list.
pub const TYPES_MAX: usize = 50;

/// Every type of event there is; docs/events.md describes each.
pub const TYPES: [&str; 30] = [
    "order.recorded",
    "order.refused",
    "order.paid",
    "order.closed",
    "order.not_revived",
    "order.refunding",
    "order.refunded",
    "order.refund_failed",
    "payment.refund_due",
    "payment.refunded",
    "payment.refund_failed",
    "payment.refund_slow",
    "payment.refunded_elsewhere",
    "sale.created",
    "sale.changed",
    "sale.published",
    "sale.opened",
    "sale.paused",
    "sale.resumed",
    "sale.closed",
    "sale.ended",
    "offer.stock_changed",
    "offer.sold_out",
    "offer.restocked",
    "buyer.struck",
    "buyer.strike_lifted",
    "buyer.blocked",
    "buyer.unblocked",
    "audit.finding",
    trial::KIND,
];

/// Names that only mean something inside a network.
const INSIDE_ENDINGS: [&str; 5] = [".localhost", ".local", ".internal", ".home.arpa", ".lan"];

/// Why an address is refused, to be read after the field's name. `private`: `webhooks.private_addresses`.
pub fn check_url(text: &str, private: bool) -> Result<Url, &'static str> {
    if text.chars().count() > URL_CHARS_MAX {
        return Err("must have at most 2000 characters");
    }
    let url = Url::parse(text).map_err(|_| "must be an address such as https://shop.example/hooks")?;
    match url.scheme() {
        "https" => {}
        "http" if private => {}
        "http" => {
            return Err(
                "must begin with https:// (the setting webhooks.private_addresses = true also allows http:// and \
                        addresses such as 127.0.0.1)",
            );
        }
        _ => return Err("must begin with https://"),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must hold no user name and no password: deliveries are signed instead");
    }
    if url.fragment().is_some() {
        return Err("must hold no #");
    }
    let host = url.host_str().unwrap_or_default().trim_end_matches('.');
    if !private && (names_private_address(&url) || is_inside(host)) {
        return Err("must lead to a public address (webhooks.private_addresses allows others)");
    }
    Ok(url)
}

fn is_inside(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let bare = !host.contains('.') && !host.contains(':');
    bare || INSIDE_ENDINGS.iter().any(|ending| host.ends_with(ending))
}

/// Why a list of types is refused, to be read after the field's name.
pub fn check_types(types: &[String]) -> Result<(), String> {
    if types.len() > TYPES_MAX {
        return Err(format!("must have at most {TYPES_MAX} entries"));
    }
    types.iter().try_for_each(|text| {
        check_type(text).map_err(|why| format!("must hold types of events, and {text:?} {why}"))
    })
}

/// Why a text is neither a type nor a kind of types, to be read after it. A type that never comes would be waited for
/// in vain.
pub fn check_type(text: &str) -> Result<(), String> {
    let kinds = TYPES.iter().filter_map(|known| known.split_once('.')).map(|(kind, _)| format!("{kind}.*"));
    let known: Vec<String> = TYPES.iter().map(|&known| known.to_owned()).chain(kinds).collect();
    if known.iter().any(|known| known == text) {
        return Ok(());
    }
    Err(match nearest(text, &known) {
        Some(known) => format!("is none; did you mean {known}?"),
        None => {
            "is none. They are such as order.paid, or order.* for all of a kind; docs/events.md lists them"
                .to_owned()
        }
    })
}

fn nearest<'a>(text: &str, known: &'a [String]) -> Option<&'a str> {
    /// Below this similarity a suggestion confuses more than it helps.
    const CLOSE: f64 = 0.7;
    let by_closeness = known.iter().map(|known| (strsim::normalized_damerau_levenshtein(known, text), known));
    let nearest = by_closeness.filter(|(close, _)| *close >= CLOSE).max_by(|a, b| a.0.total_cmp(&b.0));
    nearest.map(|(_, known)| known.as_str())
}

/// Whether a webhook with these types is told of this one.
#[must_use]
pub fn wants(types: &[String], kind: &str) -> bool {
    let covers = |wanted: &String| match wanted.strip_suffix('*') {
        Some(beginning) => kind.starts_with(beginning),
        None => wanted == kind,
    };
    types.is_empty() || types.iter().any(covers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ways to name what is inside, by spelling, by kind and by name.
    const INSIDE: &[&str] = &[
        "https://127.0.0.1/",
        "https://127.0.0.1./",
        "https://127.1/",
        "https://127.0.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.0.0.1/",
        "https://0177.0.0.1/",
        "https://017700000001/",
        "https://127.0.0.1:8443/",
        "https://127.8.8.8/",
        "https://１２７.０.０.１/",
        "https://127。0。0。1/",
        "https://%31%32%37.0.0.1/",
        "https://0/",
        "https://0.0.0.0/",
        "https://0.1.2.3/",
        "https://10.0.0.1/",
        "https://10.1/",
        "https://167772161/",
        "https://012.0.0.1/",
        "https://172.16.0.1/",
        "https://172.31.255.255/",
        "https://192.168.0.1/",
        "https://192.168.257/",
        "https://3232235777/",
        "https://100.64.0.1/",
        "https://100.100.100.200/latest/meta-data/",
        "https://169.254.169.254/latest/meta-data/",
        "https://169.254.170.2/v2/credentials",
        "https://2852039166/latest/",
        "https://0xa9fea9fe/",
        "https://0251.0376.0251.0376/",
        "https://192.0.0.192/",
        "https://192.0.2.1/",
        "https://198.18.0.1/",
        "https://198.51.100.1/",
        "https://203.0.113.1/",
        "https://224.0.0.1/",
        "https://240.0.0.1/",
        "https://255.255.255.255/",
        "https://[::]/",
        "https://[::1]/",
        "https://[0:0:0:0:0:0:0:1]/",
        "https://[::127.0.0.1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:7f00:1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://[::ffff:a9fe:a9fe]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[64:ff9b:1::a00:1]/",
        "https://[2002:7f00:1::]/",
        "https://[2002:a9fe:a9fe::1]/",
        "https://[2001:0:1::1]/",
        "https://[2001:db8::1]/",
        "https://[3fff::1]/",
        "https://[fc00::1]/",
        "https://[fd00:ec2::254]/",
        "https://[fe80::1]/",
        "https://[fec0::1]/",
        "https://[ff02::1]/",
        "https://[100::1]/",
        "https://localhost/",
        "https://LOCALHOST/",
        "https://localhost./",
        "https://shop.localhost/",
        "https://ledger/",
        "https://printer.local/",
        "https://metadata.google.internal/computeMetadata/v1/",
        "https://metadata.google.internal./",
        "https://router.lan/",
        "https://nas.home.arpa/",
    ];

    #[test]
    fn no_spelling_of_an_inside_address_is_taken() {
        for url in INSIDE {
            assert!(check_url(url, false).is_err(), "{url}");
        }
        assert!(INSIDE.len() >= 60);
    }

    #[test]
    fn only_plain_https_addresses_are_taken() {
        for url in [
            "http://shop.example/",
            "ftp://shop.example/",
            "file:///etc/passwd",
            "gopher://shop.example/",
            "javascript:alert(1)",
            "//shop.example/",
            "shop.example/hooks",
            "",
            "https://",
            "https://user@shop.example/",
            "https://user:word@shop.example/",
            "https://shop.example@127.0.0.1/",
            "https://shop.example/#part",
            "https://[fe80::1%25eth0]/",
            "https://shop.example:99999/",
        ] {
            assert!(check_url(url, false).is_err(), "{url}");
        }
        assert!(check_url(&format!("https://shop.example/{}", "x".repeat(URL_CHARS_MAX)), false).is_err());
        let at_home = check_url("http://127.0.0.1:9000/hooks", false).unwrap_err();
        assert!(at_home.contains("webhooks.private_addresses"), "{at_home}");
        for url in [
            "https://shop.example/hooks?shop=1",
            "https://SHOP.example:8443/",
            "https://1.1.1.1/",
            "https://[2606:4700::1111]/",
        ] {
            assert!(check_url(url, false).is_ok(), "{url}");
        }
    }

    #[test]
    fn a_setting_allows_what_is_inside_and_nothing_else() {
        for url in ["https://10.0.0.1/", "http://127.0.0.1:8080/hooks", "http://ledger/", "https://[::1]/"] {
            assert!(check_url(url, true).is_ok(), "{url}");
        }
        for url in ["ftp://10.0.0.1/", "http://user@10.0.0.1/", "http://10.0.0.1/#x"] {
            assert!(check_url(url, true).is_err(), "{url}");
        }
    }

    #[test]
    fn types_are_names_or_kinds() {
        let types = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        assert!(check_types(&types(&["order.paid", "sale.*", "offer.sold_out"])).is_ok());
        for bad in ["", "order", "order.", ".paid", "Order.paid", "order.paid.now", "*", "order.p*", "a b.c"]
        {
            assert!(check_types(&types(&[bad])).is_err(), "{bad}");
        }
        assert!(check_types(&vec!["order.paid".to_owned(); TYPES_MAX + 1]).is_err());
        for (slip, meant) in
            [("order.payed", "order.paid"), ("ordr.*", "order.*"), ("sale.publish", "sale.published")]
        {
            let said = check_types(&types(&["sale.*", slip])).unwrap_err();
            assert!(said.contains(slip) && said.ends_with(&format!("did you mean {meant}?")), "{said}");
        }
        assert!(check_type("zebra.crossed").unwrap_err().contains("docs/events.md"));
        let some = types(&["order.paid", "sale.*"]);
        assert!(wants(&some, "order.paid") && wants(&some, "sale.opened") && wants(&[], "buyer.struck"));
        assert!(!wants(&some, "order.closed") && !wants(&some, "order.paid_twice"));
    }
}
