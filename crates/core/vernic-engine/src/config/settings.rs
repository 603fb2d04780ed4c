//! Settings with their origins. A value set by code goes before one of the environment, that before
//! one of the file, and that before the default.
//!
//! Owns the search for the settings file and the reading of the environment. Called when a device
//! is opened and the caller passes no settings, and by `vernic config`, which shows the origins.
//!
//! The variable `VERNIC_CONFIG` names the file; an empty value means no file. Without the variable,
//! the file is the first that exists of `$XDG_CONFIG_HOME/vernic.conf` and `/etc/vernic.conf`. If
//! `XDG_CONFIG_HOME` is unset or not absolute, `$HOME/.config/vernic.conf` is tried instead of the
//! first. The file holds lines `key = value` and `#` comments.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use super::{CONFIG_VARIABLE, Config, ConfigError, KEYS, Key};

/// Prefix of the names of all environment variables that are settings.
const PREFIX: &str = "VERNIC_";
/// Environment variables with the prefix that are not settings. Some belong to `vernic bench` and
/// to the tests. `VERNIC_FABRIC_DIR` is the folder with the sockets of fabrics. `VERNIC_PATHS`
/// names the folder of device files that `vernic run` shows to programs. The variables of rsockets
/// belong to the library that lets TCP programs use rsockets.
pub(super) const OTHER_VARIABLES: [&str; 8] = [
    "VERNIC_BENCH_TOKEN",
    "VERNIC_FABRIC_DIR",
    "VERNIC_LOG",
    "VERNIC_REQUIRE_TOOLS",
    "VERNIC_PATHS",
    "VERNIC_RSOCKETS",
    "VERNIC_RSOCKETS_CONNECT_MS",
    "VERNIC_TEST_ROLE",
];
/// Name of the settings file in the directories where it is searched for.
const FILE_NAME: &str = "vernic.conf";

/// The place that a setting's value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The setting has its default.
    Default,
    /// A line of the settings file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// This environment variable.
    Variable(&'static str),
    /// The program, which called [`Settings::set`].
    Code,
    /// The setting is forced, because the program has rights that its caller does not have: see
    /// [`Settings::load`].
    Rights,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "file {} line {line}", path.display()),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Code => f.write_str("code"),
            Self::Rights => f.write_str("rights that the caller has not (set-uid or the like)"),
        }
    }
}

/// A [`Config`] that remembers where each value comes from.
#[derive(Clone, Debug)]
pub struct Settings {
    config: Config,
    /// The origins, in the order of [`KEYS`].
    origins: Vec<Origin>,
}

impl Default for Settings {
    /// Returns all defaults.
    fn default() -> Self {
        // `vec![_; n]` would clone a value and so branch on bytes that this variant does not
        // initialize. That is harmless, but valgrind reports it to users who run their programs
        // under valgrind.
        let origins = KEYS.iter().map(|_| Origin::Default).collect();
        Self { config: Config::default(), origins }
    }
}

impl Settings {
    /// Reads the defaults, then the file, then the environment.
    ///
    /// File and environment are not read in a program with rights that its caller does not have
    /// (set-uid, set-gid, capabilities of the file). The caller controls both, and settings can
    /// name files that the program then writes. Such a program shares nothing with other processes
    /// of the host either.
    ///
    /// # Errors
    /// [`ConfigError`] for the first setting that is unknown or has a bad value, or for a file that
    /// exists and cannot be read.
    pub fn load() -> Result<Self, ConfigError> {
        let mut settings = Self::default();
        if vernic_io::has_foreign_rights() {
            for name in ["same_host", "direct"] {
                let index = settings.config.set_from(name, "off", || Origin::Rights.to_string())?;
                settings.origins[index] = Origin::Rights;
            }
            return Ok(settings);
        }
        if let Some((path, text)) = read_file(|name| std::env::var_os(name))? {
            settings.take_file(&text, &path)?;
        }
        for (name, value) in std::env::vars_os() {
            // Variables of other programs may hold any bytes. Those of settings are text.
            let name = name.to_string_lossy();
            if name.starts_with(PREFIX) && name != CONFIG_VARIABLE {
                settings.take_variable(&name, &value.to_string_lossy())?;
            }
        }
        Ok(settings)
    }

    /// Returns the values.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the values, to open a device with.
    pub fn into_config(self) -> Config {
        self.config
    }

    /// Sets one setting by name. The origin of the setting is [`Origin::Code`] from then on.
    ///
    /// # Errors
    /// [`ConfigError::UnknownKey`], [`ConfigError::BadValue`].
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let index = self.config.set_from(name, value, || Origin::Code.to_string())?;
        self.origins[index] = Origin::Code;
        Ok(())
    }

    /// Returns every setting with its value and origin, in the order of [`KEYS`].
    pub fn rows(&self) -> impl Iterator<Item = (&'static Key, String, &Origin)> {
        self.config.values().zip(&self.origins).map(|((key, value), origin)| (key, value, origin))
    }

    /// Returns the origin of the setting with this name; `None` if there is no such setting.
    pub fn origin(&self, name: &str) -> Option<&Origin> {
        KEYS.iter().position(|key| key.name == name).map(|index| &self.origins[index])
    }

    fn take_file(&mut self, text: &str, path: &Path) -> Result<(), ConfigError> {
        let shown = path.display().to_string();
        for_each_line(text, &shown, |name, value, line| {
            let index = self.config.set_from(name, value, || format!("{shown} line {line}"))?;
            self.origins[index] = Origin::File { path: path.to_owned(), line };
            Ok(())
        })
    }

    /// Sets the setting that belongs to an environment variable. A mistyped name is an error, so
    /// that a user does not believe, for example, that faults are injected when none are.
    fn take_variable(&mut self, variable: &str, value: &str) -> Result<(), ConfigError> {
        match KEYS.iter().position(|key| key.variable == variable) {
            Some(index) => {
                self.config.apply(index, value, || variable.to_owned())?;
                self.origins[index] = Origin::Variable(KEYS[index].variable);
                Ok(())
            }
            None if OTHER_VARIABLES.contains(&variable) => Ok(()),
            None => {
                let (name, origin) = (variable.to_owned(), "environment".to_owned());
                Err(ConfigError::UnknownKey { name, origin })
            }
        }
    }
}

/// Calls `take` for each line that sets something, with the name, the value and the line number
/// from 1.
pub(super) fn for_each_line(
    text: &str,
    origin: &str,
    mut take: impl FnMut(&str, &str, usize) -> Result<(), ConfigError>,
) -> Result<(), ConfigError> {
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let number = index + 1;
        let Some((name, value)) = line.split_once('=') else {
            let origin = format!("{origin} line {number}");
            return Err(ConfigError::BadLine { line: line.to_owned(), origin });
        };
        take(name.trim(), value.trim(), number)?;
    }
    Ok(())
}

/// Returns the settings file, if there is one, and its text.
fn read_file(
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<(PathBuf, String)>, ConfigError> {
    let read = |path: PathBuf| match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some((path, text))),
        Err(source) => Err(ConfigError::File { path, source }),
    };
    match variable(CONFIG_VARIABLE) {
        Some(named) if named.is_empty() => Ok(None),
        Some(named) => read(named.into()),
        // A file in a directory that this user may not read counts as missing.
        None => candidates(variable).into_iter().find(|path| path.exists()).map_or(Ok(None), read),
    }
}

/// Returns the paths at which a settings file is searched for, in this order, if no variable names
/// one.
fn candidates(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    // The XDG base directory specification: a relative path is invalid and to be ignored.
    let xdg = variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(PathBuf::from(variable("HOME")?).join(".config"));
    let directories = xdg.or_else(home).into_iter().chain([PathBuf::from("/etc")]);
    directories.map(|directory| directory.join(FILE_NAME)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_variable_is_an_error_and_those_of_the_tests_are_not() {
        let mut settings = Settings::default();
        let error = settings.take_variable("VERNIC_FAULTS", "loss=1").unwrap_err().to_string();
        assert!(error.contains("VERNIC_FAULTS"), "{error}");
        settings.take_variable("VERNIC_REQUIRE_TOOLS", "1").unwrap();
        settings.take_variable("VERNIC_FAULT", "loss=1").unwrap();
        assert_eq!(settings.config().fault, "loss=1");
    }

    #[test]
    fn each_value_tells_the_last_place_that_set_it() {
        let mut settings = Settings::default();
        let path = Path::new("/x/vernic.conf");
        settings.take_file("mtu = 1024\n\nflows = 2 # few\ntrace = on\n", path).unwrap();
        settings.take_variable("VERNIC_FLOWS", "3").unwrap();
        settings.set("trace", "off").unwrap();
        let origin = |name| settings.origin(name).unwrap().to_string();
        assert_eq!(origin("device"), "default");
        assert_eq!(origin("mtu"), "file /x/vernic.conf line 1");
        assert_eq!(origin("flows"), "environment variable VERNIC_FLOWS");
        assert_eq!(origin("trace"), "code");
        assert_eq!(settings.config().flows, 3);
        assert_eq!(settings.origin("no such"), None);
    }

    #[test]
    fn the_file_is_looked_for_where_xdg_says() {
        let look = |xdg: Option<&str>, home: Option<&str>| {
            let value = |name: &str| match name {
                "XDG_CONFIG_HOME" => xdg.map(OsString::from),
                "HOME" => home.map(OsString::from),
                _ => None,
            };
            let paths = candidates(value);
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        let etc = "/etc/vernic.conf";
        assert_eq!(look(Some("/xdg"), Some("/home/u")), format!("/xdg/vernic.conf {etc}"));
        for none in [None, Some(""), Some("relative")] {
            let expected = format!("/home/u/.config/vernic.conf {etc}");
            assert_eq!(look(none, Some("/home/u")), expected);
        }
        assert_eq!(look(None, None), etc);
    }

    #[test]
    fn a_file_that_is_named_must_be_there_unless_the_name_is_empty() {
        let named = |path: &'static str| {
            read_file(move |name| (name == CONFIG_VARIABLE).then(|| path.into()))
        };
        assert!(named("").unwrap().is_none());
        let error = named("/no/such/file").unwrap_err().to_string();
        assert!(error.contains("/no/such/file"), "{error}");
    }
}
