//! JSON objects that are objects. serde also takes an array for a struct, its fields in their order, which no document
//! of ours promises: a list that was sent by mistake would change stock. Knows nothing of what is in them.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// `T`, read from an object and from nothing else. What is inside `T` is its own affair.
#[derive(Clone, Copy, Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// Makes a struct an object wherever it stands. It derives serde's traits with `#[serde(remote = "Self")]`.
macro_rules! object {
    ($name:ident) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                // The derived one.
                $name::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Derived($name);
                impl<'de> serde::Deserialize<'de> for Derived {
                    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                        $name::deserialize(deserializer).map(Self)
                    }
                }
                let $crate::object::Object(Derived(value)) = serde::Deserialize::deserialize(deserializer)?;
                Ok(value)
            }
        }
    };
}

pub(crate) use object;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::Money;
    use crate::sale::{ChallengeKind, OfferDraft, RegistrationKind};

    #[test]
    fn an_array_is_no_object_at_any_depth() {
        let money = r#"{"amount":1,"currency":"CNY"}"#;
        assert!(serde_json::from_str::<Object<Money>>(money).is_ok());
        assert!(serde_json::from_str::<Money>(r#"[1,"CNY"]"#).is_err());
        let offer = |price: &str| format!(r#"{{"name":"a","price":{price},"stock":1}}"#);
        assert!(serde_json::from_str::<OfferDraft>(&offer(money)).is_ok());
        assert!(serde_json::from_str::<OfferDraft>(&offer(r#"[1,"CNY"]"#)).is_err());
        let list = format!(r#"["a",null,null,null,{money},1,1]"#);
        assert!(serde_json::from_str::<OfferDraft>(&list).is_err());
    }

    #[test]
    fn a_word_is_a_text_and_nothing_else() {
        for bad in [r#"{"none":null}"#, "null", "5", "[]", "true", r#""None""#, r#""""#] {
            let challenge = serde_json::from_str::<ChallengeKind>(bad);
            assert!(challenge.is_err_and(|error| error.is_data()), "{bad}");
            let registration = serde_json::from_str::<RegistrationKind>(bad);
            assert!(registration.is_err_and(|error| error.is_data()), "{bad}");
        }
        assert_eq!(serde_json::from_str::<ChallengeKind>(r#""pow""#).unwrap(), ChallengeKind::Pow);
        assert_eq!(serde_json::to_string(&ChallengeKind::Pow).unwrap(), r#""pow""#);
    }
}
