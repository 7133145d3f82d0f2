//! Options whose values are names that the simulation defines.

use std::error::Error;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use cxloe_sim::Named;

/// Parses a value of `T` by its name; the help text lists all values with their descriptions.
pub fn by_name<T>() -> impl TypedValueParser<Value = T>
where
    T: Named + FromStr<Err: Error + Send + Sync> + Send + Sync,
{
    let values = T::ALL.iter().map(|value| PossibleValue::new(value.name()).help(value.description()));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<T>())
}
