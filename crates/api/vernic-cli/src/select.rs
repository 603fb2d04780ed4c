//! Which device a command uses: the one of its option, else the one of the setting `device`.

use crate::failure::{Failure, Outcome};
use vernic::{Device, Error, OpenError, Settings};

/// A device that somebody asked for by name.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    name: String,
    /// Where the name comes from, unless it is an option of the command.
    setting: Option<String>,
}

impl Chosen {
    /// The device that the command line names.
    pub(crate) fn by_option(name: &str) -> Self {
        Self { name: name.to_owned(), setting: None }
    }

    /// The device that the command line names, else the one that the settings name, if any.
    pub(crate) fn find(option: Option<&str>, settings: &Settings) -> Option<Self> {
        if let Some(name) = option {
            return Some(Self::by_option(name));
        }
        let name = settings.config().device.clone();
        let setting = settings.origin("device").map(ToString::to_string);
        (!name.is_empty()).then_some(Self { name, setting })
    }

    /// Opens it. A name that does not exist is wrong usage, in an option and in a setting.
    pub(crate) fn open(&self) -> Outcome<Device> {
        let error = match Device::open(&self.name) {
            Ok(device) => return Ok(device),
            Err(error) => error,
        };
        let no_such = matches!(
            error,
            Error::Open(OpenError::NoSuchDevice { .. } | OpenError::Unusable { .. })
        );
        let failure = Failure::new(format!("cannot open {}: {error}", self.name));
        Err(match &self.setting {
            Some(origin) if no_such => {
                failure.hint(format!("the name comes from: {origin}")).into_usage()
            }
            None if no_such => failure.into_usage(),
            _ => failure,
        })
    }
}
