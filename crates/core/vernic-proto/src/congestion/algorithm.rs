//! The choice of a built-in controller, with its parameters, and how a text names it.

use core::fmt;
use core::str::FromStr;

use super::{Dcqcn, ParamError, Swift};

/// A congestion control that is built in, and its parameters.
///
/// As a text it is a name, behind which parameters may follow: `dcqcn,rpg_time_reset=55`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// A window by losses and round trips.
    #[default]
    Aimd,
    /// A rate by marks: IBTA A17.9, and the paper of SIGCOMM 2015. Needs a network that marks.
    Dcqcn(Dcqcn),
    /// A window by delay: the paper of SIGCOMM 2020. Needs nothing of the network.
    Swift(Swift),
    /// Always the largest window.
    None,
}

impl Algorithm {
    /// The names, as a text has them.
    pub const NAMES: &[&str] = &["aimd", "dcqcn", "swift", "none"];

    /// Whether the algorithm lives on marks, so that packets should say that they may be marked.
    pub const fn needs_marks(&self) -> bool {
        matches!(self, Self::Dcqcn(_))
    }

    /// Checks the parameters, which a program may have set to anything.
    ///
    /// # Errors
    /// A value out of range, or two that contradict each other.
    pub fn check(&self) -> Result<(), ParamError> {
        match self {
            Self::Dcqcn(params) => params.check(),
            Self::Swift(params) => params.check(),
            Self::Aimd | Self::None => Ok(()),
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ParamError> {
        let algorithm = match self {
            Self::Dcqcn(params) => return params.set(name, value),
            Self::Swift(params) => return params.set(name, value),
            Self::Aimd => "aimd",
            Self::None => "none",
        };
        Err(ParamError::Unknown { algorithm, name: name.to_owned(), known: "none".into() })
    }
}

impl FromStr for Algorithm {
    type Err = ParamError;

    fn from_str(text: &str) -> Result<Self, ParamError> {
        let mut words = text.split(',').map(str::trim);
        let name = words.next().unwrap_or_default();
        let mut algorithm = match name.to_ascii_lowercase().as_str() {
            "aimd" => Self::Aimd,
            "dcqcn" => Self::Dcqcn(Dcqcn::default()),
            "swift" => Self::Swift(Swift::default()),
            "none" => Self::None,
            _ => return Err(ParamError::Algorithm(name.to_owned())),
        };
        let mut names = Vec::new();
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let name = name.trim();
            algorithm.set(name, value.trim())?;
            if names.contains(&name) {
                return Err(ParamError::Twice { name: name.to_owned() });
            }
            names.push(name);
        }
        algorithm.check()?;
        Ok(algorithm)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aimd => f.write_str("aimd"),
            Self::Dcqcn(params) => params.fmt(f),
            Self::Swift(params) => params.fmt(f),
            Self::None => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_an_algorithm_and_its_parameters() {
        for text in ["aimd", "none", "dcqcn", "swift", "dcqcn,rpg_min_rate=7,dce_tcp_g=1000"] {
            let algorithm: Algorithm = text.parse().expect(text);
            assert_eq!(algorithm.to_string(), text);
        }
        let spaced: Algorithm = " DCQCN , rpg_threshold = 1".parse().expect("with blanks");
        assert_eq!(spaced, Algorithm::Dcqcn(Dcqcn { rpg_threshold: 1, ..Dcqcn::default() }));
    }

    #[test]
    fn what_is_wrong_with_a_text_is_named() {
        let refused = |text: &str| text.parse::<Algorithm>().expect_err(text).to_string();
        assert_eq!(refused("cubic"), "no congestion control is called \"cubic\"");
        assert_eq!(refused("aimd,a=1"), "aimd has no parameter \"a\"; it has: none");
        assert!(refused("dcqcn,rpg=1").starts_with("dcqcn has no parameter \"rpg\"; it has: rpg_"));
        assert_eq!(
            refused("dcqcn,rpg_threshold=0"),
            "rpg_threshold of dcqcn is \"0\", and must be 1 to 31 steps"
        );
        assert_eq!(refused("dcqcn,rpg_gd=11,rpg_gd=12"), "rpg_gd is given twice");
        assert!(refused("swift,beta").starts_with("beta of swift is \"\", and must be"));
    }

    #[test]
    fn parameters_that_contradict_each_other_are_refused_with_both_values() {
        for (text, said) in [
            (
                "dcqcn,rpg_max_rate=1,rpg_min_rate=10",
                "rpg_min_rate of dcqcn is 10 Mb/s, above rpg_max_rate, which is 1 Mb/s: lower \
                 rpg_min_rate or raise rpg_max_rate",
            ),
            (
                "dcqcn,rpg_min_rate=400001",
                "rpg_min_rate of dcqcn is 400001 Mb/s, above rpg_max_rate, which is 400000 Mb/s: \
                 lower rpg_min_rate or raise rpg_max_rate",
            ),
            (
                "dcqcn,rpg_min_rate=9,rate_to_set_on_first_cnp=8",
                "rpg_min_rate of dcqcn is 9 Mb/s, above rate_to_set_on_first_cnp, which is 8 Mb/s: \
                 lower rpg_min_rate or raise rate_to_set_on_first_cnp",
            ),
            (
                "dcqcn,rate_to_set_on_first_cnp=8,rpg_max_rate=7",
                "rate_to_set_on_first_cnp of dcqcn is 8 Mb/s, above rpg_max_rate, which is 7 Mb/s: \
                 lower rate_to_set_on_first_cnp or raise rpg_max_rate",
            ),
            (
                "swift,fs_min_cwnd=5000,fs_max_cwnd=4000",
                "fs_min_cwnd of swift is 5000 1/1000 packets, above fs_max_cwnd, which is 4000 \
                 1/1000 packets: lower fs_min_cwnd or raise fs_max_cwnd",
            ),
        ] {
            assert_eq!(text.parse::<Algorithm>().expect_err(text).to_string(), said);
        }
        for text in ["dcqcn,rpg_max_rate=9,rpg_min_rate=9,rate_to_set_on_first_cnp=9", "dcqcn"] {
            text.parse::<Algorithm>().expect(text);
        }
    }

    #[test]
    fn parameters_that_a_program_set_are_checked_too() {
        let no_time = Algorithm::Dcqcn(Dcqcn { rpg_time_reset: 0, ..Dcqcn::default() });
        let error = no_time.check().expect_err("a step needs time").to_string();
        assert_eq!(error, "rpg_time_reset of dcqcn is \"0\", and must be 1 to 1000000 us");
        let crossed =
            Algorithm::Swift(Swift { fs_min_cwnd: 9, fs_max_cwnd: 8, ..Swift::default() });
        assert!(matches!(crossed.check(), Err(ParamError::Contradiction { .. })));
        for algorithm in [Algorithm::Dcqcn(Dcqcn::default()), Algorithm::Swift(Swift::default())] {
            assert_eq!(algorithm.check(), Ok(()), "defaults are within their ranges");
        }
    }
}
