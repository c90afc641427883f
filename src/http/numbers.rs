//! Numbers as JSON has them.

use std::fmt::Display;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Number;

/// Reads a whole number that may be null.
pub(super) fn whole_or_none<'de, N, D>(deserializer: D) -> Result<Option<N>, D::Error>
where
    N: TryFrom<i64, Error: Display>,
    D: Deserializer<'de>,
{
    let number = Option::<Number>::deserialize(deserializer)?;
    number.map(|number| whole(number).map_err(D::Error::custom)).transpose()
}

/// Reads a whole number. JSON knows one kind of numbers, and JSON Schema takes 5.0 for an integer: so do we.
pub(super) fn whole<'de, N, D>(deserializer: D) -> Result<N, D::Error>
where
    N: TryFrom<i64, Error: Display>,
    D: Deserializer<'de>,
{
    let number = Number::deserialize(deserializer)?;
    let text = number.to_string();
    let digits = text.strip_suffix(".0").unwrap_or(&text);
    let whole: i64 = digits.parse().map_err(|_| D::Error::custom(format!("{text} is no whole number")))?;
    N::try_from(whole).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::whole;

    #[test]
    fn whole_numbers_are_read_however_they_are_written() {
        assert_eq!(whole::<u32, _>(json!(5)).unwrap(), 5);
        assert_eq!(whole::<u32, _>(json!(265.0)).unwrap(), 265);
        for wrong in [json!(5.5), json!(-1), json!("5"), json!(5_000_000_000_u64), json!(1e30)] {
            assert!(whole::<u32, _>(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
