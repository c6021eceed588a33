//! What the reader of JSON says of a value that does not fit, in words for whoever sent it. Knows the reader's words and
//! nothing of what is read.

use rules::wire::Code;

use super::refusal::Refusal;

/// What is wrong, to be read after the name of the field at `path`. Where in the text it stands is left out: the field
/// says it better, and who sends may have written the text anew.
pub fn sentence(error: &serde_json::Error, path: &str) -> String {
    let words = error.to_string();
    let words = words.rsplit_once(" at line ").map_or(words.as_str(), |(words, _)| words);
    let beginnings = ["invalid type: ", "invalid value: ", "invalid length "];
    let of_kind = beginnings.iter().find_map(|beginning| words.strip_prefix(beginning));
    if let Some((given, expected)) = of_kind.and_then(|words| words.split_once(", expected ")) {
        return must_be(given, expected, path);
    }
    // Our own words are made to stand behind the name.
    let is_own = ["is ", "has ", "lies ", "must "].iter().any(|verb| words.starts_with(verb));
    if is_own { words.to_owned() } else { format!("is not as it must be: {words}") }
}

fn must_be(given: &str, expected: &str, path: &str) -> String {
    let is_amount = path == "amount" || path.ends_with(".amount");
    match expected {
        "i64" | "u64" | "u32" if is_amount => {
            "must be a whole number of minor units (1499 for 14.99)".to_owned()
        }
        "i64" => "must be a whole number".to_owned(),
        "u64" | "u32" => format!("must be a whole number from 0 to {}", u32::MAX),
        "a JSON object" if is_money(path) => {
            "must be an amount in minor units with its currency: {\"amount\": 1499, \"currency\": \"EUR\"}"
                .to_owned()
        }
        "a string" => "must be a text in quotes".to_owned(),
        "a boolean" => "must be true or false".to_owned(),
        "a sequence" => "must be a list: [ … ]".to_owned(),
        other if other.starts_with("struct ") || other == "a JSON object" => {
            "must be an object: { … }".to_owned()
        }
        other => format!("must be {other}, and is {given}"),
    }
}

fn is_money(path: &str) -> bool {
    matches!(path.rsplit('.').next(), Some("price" | "list_price"))
}

/// The refusal of a query whose reader said this.
pub fn of_query(words: &str) -> Refusal {
    let words = words.strip_prefix("Failed to deserialize query string: ").unwrap_or(words);
    let unknown = words
        .split_once(": unknown field `")
        .and_then(|(name, rest)| Some((name, rest.split_once(", expected ")?.1)));
    if let Some((name, known)) = unknown {
        let known = known.trim_start_matches("one of ").replace('`', "");
        return Refusal::field(name, format_args!("is no parameter of this call; there are: {known}"));
    }
    Refusal::detail(Code::InvalidRequest, format!("The query is not as it must be: {words}"))
}

#[cfg(test)]
mod tests {
    use rules::sale::SaleDraft;

    use crate::edge::extract::parse_json;

    fn said(offer: &str, more: &str) -> String {
        let text = format!(
            r#"{{"title": "t", "opens_at": "2026-12-01T12:00:00Z", "closes_at": "2026-12-01T13:00:00Z",{more}
                "offers": [{{"name": "n", "stock": 1, {offer}}}]}}"#
        );
        parse_json::<SaleDraft>(text.as_bytes()).unwrap_err().extra.detail.unwrap()
    }

    #[test]
    fn mistakes_in_a_draft_are_said_in_words_of_its_writer() {
        for (offer, expected) in [
            (
                r#""price": {"amount": 14.99, "currency": "EUR"}"#,
                "offers[0].price.amount must be a whole number of minor units (1499 for 14.99)",
            ),
            (
                r#""price": 100"#,
                "offers[0].price must be an amount in minor units with its currency: {\"amount\": 1499, \"currency\": \"EUR\"}",
            ),
            (
                r#""price": {"amount": 1, "currency": "Eur"}"#,
                "offers[0].price.currency is not a currency of ISO 4217 such as CNY, EUR or USD",
            ),
        ] {
            assert_eq!(said(offer, ""), expected);
        }
        for (more, expected) in [
            (
                r#""publish_at": "tomorrow","#,
                "publish_at is not an RFC 3339 time such as 2026-12-01T12:00:00Z",
            ),
            (
                r#""publish_at": "2026-12-01T12:00:00","#,
                "publish_at has no zone: add Z, or an offset such as +08:00",
            ),
            (r#""rehearsal": "yes","#, "rehearsal must be true or false"),
            (r#""pay_within_s": -1,"#, "pay_within_s must be a whole number from 0 to 4294967295"),
        ] {
            assert_eq!(said(r#""price": {"amount": 1, "currency": "EUR"}"#, more), expected);
        }
        let list = parse_json::<SaleDraft>(b"[]").unwrap_err().extra.detail.unwrap();
        assert_eq!(list, "The body must be an object: { … }");
        let number = parse_json::<SaleDraft>(b"7").unwrap_err().extra.detail.unwrap();
        assert_eq!(number, "The body must be an object: { … }");
    }

    #[test]
    fn an_unknown_parameter_is_named_with_those_that_there_are() {
        let words =
            "Failed to deserialize query string: foo: unknown field `foo`, expected one of `sale`, `limit`";
        let refusal = super::of_query(words);
        assert_eq!(refusal.extra.field.as_deref(), Some("foo"));
        assert_eq!(refusal.extra.detail.unwrap(), "foo is no parameter of this call; there are: sale, limit");
    }
}
