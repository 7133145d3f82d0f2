//! Options of the command line and of the environment, kept separately: a flag overrides the configuration file, and
//! the file overrides an environment variable, because the variable may be set for other programs.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::options;

/// Options of a daemon that come from outside its configuration file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptionSources<S> {
    pub flags: S,
    pub environment: S,
}

impl<S: Serialize + DeserializeOwned> OptionSources<S> {
    /// Effective options: flags over `file` over the environment.
    ///
    /// # Panics
    /// As [`options::over`].
    pub fn over(&self, file: &S) -> S {
        options::over(&options::over(&self.flags, file), &self.environment)
    }
}

impl<S: Args> Args for OptionSources<S>
where
    OptionSources<S>: FromArgMatches,
{
    fn augment_args(command: Command) -> Command {
        S::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        S::augment_args_for_update(command)
    }
}

impl<S: FromArgMatches + Serialize + DeserializeOwned> FromArgMatches for OptionSources<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let all = toml::Table::try_from(S::from_arg_matches(matches)?).expect("options are plain values");
        let (environment, flags): (toml::Table, toml::Table) = all.into_iter().partition(|(name, _)| {
            matches.value_source(&name.replace('-', "_")) == Some(ValueSource::EnvVariable)
        });
        let read = |table: toml::Table| table.try_into().expect("a part of options is options");
        Ok(Self { flags: read(flags), environment: read(environment) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde::Deserialize;

    use super::*;

    /// Options with two environment variables that Cargo sets for every test.
    #[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case", deny_unknown_fields)]
    struct Settings {
        #[arg(long, env = "CARGO_PKG_NAME")]
        socket_path: Option<String>,
        #[arg(long, env = "CARGO_MANIFEST_DIR")]
        folder: Option<String>,
        #[arg(long)]
        name: Option<String>,
    }

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        given: OptionSources<Settings>,
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_the_environment() {
        let given = Line::parse_from(["x", "--folder", "flag", "--name", "n"]).given;
        let of = |socket_path: Option<&str>, folder: Option<&str>, name: Option<&str>| Settings {
            socket_path: socket_path.map(Into::into),
            folder: folder.map(Into::into),
            name: name.map(Into::into),
        };
        assert_eq!(given.flags, of(None, Some("flag"), Some("n")));
        assert_eq!(given.environment, of(Some(env!("CARGO_PKG_NAME")), None, None));
        let file = of(Some("file"), Some("file"), None);
        assert_eq!(given.over(&file), of(Some("file"), Some("flag"), Some("n")));
        assert_eq!(given.over(&Settings::default()).socket_path.as_deref(), Some(env!("CARGO_PKG_NAME")));
    }
}
