//! Money in minor units with an ISO 4217 currency. Integers only, checked arithmetic only.

use std::fmt;
use std::str::FromStr;

use rusty_money::iso;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use crate::object::object;

/// The largest amount accepted, in minor units: large enough for any shop, small enough that a hundred times it
/// is still exact in every JSON parser (2^53).
pub const AMOUNT_MAX: i64 = 10_000_000_000_000;

/// An amount of minor units (cents, 分) of one currency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Money {
    /// Minor units, for example cents. Nothing costs more than 10,000,000,000,000 of them; what was paid can be more.
    #[schema(minimum = 0)]
    pub amount: i64,
    pub currency: Currency,
}

object!(Money);

/// How a list price is described: [`Money`] that nobody pays. The check itself is in [`crate::sale`].
#[derive(Clone, Copy, Debug, ToSchema)]
pub struct ListPrice {
    /// Minor units, for example cents.
    #[schema(minimum = 0, maximum = 10_000_000_000_000_i64)]
    pub amount: i64,
    pub currency: Currency,
}

/// How an offer's price is described: [`Money`] that somebody pays. The check itself is in [`crate::sale`].
#[derive(Clone, Copy, Debug, ToSchema)]
pub struct Price {
    /// Minor units, for example cents; at least one.
    #[schema(minimum = 1, maximum = 10_000_000_000_000_i64)]
    pub amount: i64,
    pub currency: Currency,
}

impl Money {
    /// `self` times a quantity; `None` when it would leave the range of money.
    #[must_use]
    pub fn times(self, quantity: u32) -> Option<Self> {
        let amount = self.amount.checked_mul(i64::from(quantity))?;
        Some(Self { amount, currency: self.currency })
    }
}

/// A currency of ISO 4217, by its three letters.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Currency([u8; 3]);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a currency of ISO 4217 such as CNY, EUR or USD")]
pub struct CurrencyError;

impl Currency {
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// How many digits the minor unit has by ISO 4217: 2 for CNY, 0 for JPY.
    #[must_use]
    pub fn exponent(&self) -> u32 {
        match self.as_str() {
            // The crate counts them by coins (five iraimbilanja, five khoums) or by habit, not by the list.
            "HUF" | "MGA" | "MRU" => 2,
            code => iso::find(code).map_or(2, |currency| currency.exponent),
        }
    }

    /// Whether people pay with it today. Metals, units of account, funds, the codes for tests and for nothing, and what
    /// was withdrawn can be read, because money that came must be written down, but nothing is sold for them.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        !NOT_IN_USE.contains(&self.as_str())
    }
}

/// Codes of ISO 4217 that no price may have: metals, units of account, tests and nothing; funds; what was withdrawn.
#[rustfmt::skip]
const NOT_IN_USE: [&str; 34] = [
    "XAD", "XAG", "XAU", "XBA", "XBB", "XBC", "XBD", "XDR", "XPD", "XPT", "XSU", "XTS", "XUA", "XXX",
    "BOV", "CHE", "CHW", "CLF", "COU", "MXV", "USN", "UYI", "UYW",
    "ANG", "BGN", "BYR", "CUC", "HRK", "ROL", "SKK", "SLL", "STD", "ZMK", "ZWL",
];

impl FromStr for Currency {
    type Err = CurrencyError;

    fn from_str(text: &str) -> Result<Self, CurrencyError> {
        let letters: [u8; 3] = text.as_bytes().try_into().map_err(|_| CurrencyError)?;
        let known = letters.iter().all(u8::is_ascii_uppercase) && iso::find(text).is_some();
        if known { Ok(Self(letters)) } else { Err(CurrencyError) }
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Currency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Currency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl utoipa::PartialSchema for Currency {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .description(Some("A currency of ISO 4217."))
            .pattern(Some("^[A-Z]{3}$"))
            .examples(["CNY"])
            .into()
    }
}

impl ToSchema for Currency {}

/// `1499.00 CNY`: for people, never for machines.
impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exponent = self.currency.exponent();
        let scale = 10_i64.checked_pow(exponent).unwrap_or(1);
        let width = usize::try_from(exponent).unwrap_or(0);
        let (whole, part) = (self.amount / scale, (self.amount % scale).abs());
        if width == 0 {
            write!(f, "{whole} {}", self.currency)
        } else {
            write!(f, "{whole}.{part:0width$} {}", self.currency)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn money(amount: i64, currency: &str) -> Money {
        Money { amount, currency: currency.parse().unwrap() }
    }

    #[test]
    fn arithmetic_is_checked() {
        assert_eq!(money(149_900, "CNY").times(3), Some(money(449_700, "CNY")));
        assert_eq!(money(i64::MAX, "CNY").times(2), None);
        assert_eq!(money(AMOUNT_MAX, "CNY").times(100), Some(money(AMOUNT_MAX * 100, "CNY")));
    }

    #[test]
    fn only_currencies_of_the_table_are_read() {
        for bad in ["", "cny", "RMB", "CN", "CNYY", "元元元", "12 "] {
            assert_eq!(bad.parse::<Currency>(), Err(CurrencyError), "{bad}");
        }
    }

    /// ISO 4217, list one: what a price may be in, by the digits of its minor unit.
    const LIST_ONE: [(u32, &str); 3] = [
        (0, "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"),
        (
            2,
            "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CNY COP \
             CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS \
             INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN \
             MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE \
             SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD UYU UZS VED VES WST XCD XCG YER ZAR \
             ZMW ZWG",
        ),
        (3, "BHD IQD JOD KWD LYD OMR TND"),
    ];

    #[test]
    fn every_currency_a_price_may_have_has_the_digits_of_iso_4217() {
        let letters = || b'A'..=b'Z';
        let codes = letters().flat_map(|a| letters().flat_map(move |b| letters().map(move |c| [a, b, c])));
        let ours: std::collections::BTreeMap<String, u32> = codes
            .filter_map(|code| std::str::from_utf8(&code).unwrap().parse::<Currency>().ok())
            .filter(Currency::is_in_use)
            .map(|currency| (currency.to_string(), currency.exponent()))
            .collect();
        let list = LIST_ONE.iter();
        let listed = list.flat_map(|(digits, codes)| codes.split(' ').map(|code| (code.to_owned(), *digits)));
        assert_eq!(ours, listed.collect());
    }

    #[test]
    fn what_nobody_pays_with_can_be_read_but_is_not_in_use() {
        for code in NOT_IN_USE {
            assert!(!code.parse::<Currency>().unwrap().is_in_use(), "{code}");
        }
    }

    #[test]
    fn fractions_are_not_truncated_but_refused() {
        let read = serde_json::from_str::<Money>(r#"{"amount": 1.5, "currency": "CNY"}"#);
        assert!(read.is_err());
    }

    #[test]
    fn people_see_the_right_number_of_digits() {
        assert_eq!(money(149_905, "CNY").to_string(), "1499.05 CNY");
        assert_eq!(money(1_500, "JPY").to_string(), "1500 JPY");
        assert_eq!(money(1_505, "HUF").to_string(), "15.05 HUF");
    }
}
