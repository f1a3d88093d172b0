//! Options of ports, switches and the daemon, each told once.
//!
//! [`options!`] makes two things of a table: the type into which the TOML file, the JSON of the control socket and the words
//! of the command line are read, and the list of its keys. What a kind of port knows, what a change of a key costs, what is
//! said of a key that does not apply, and `--help` come from that list; tests hold the documentation and the description of
//! the JSON against it. A new option is a new row here, and a word in the rows of the kinds that know it.

use std::fmt;
use std::path::PathBuf;

/// One option of a part of the configuration.
pub struct Key {
    /// How it is written.
    pub name: &'static str,
    /// What its values are.
    pub form: Form,
    /// What it applies to.
    pub scope: Scope,
    /// What holds without it, for people.
    pub default: &'static str,
    /// What it is for: the documentation of its field, with the blanks that stand before each line.
    pub(super) lines: &'static str,
}

impl Key {
    /// What it is for, for people.
    pub fn help(&self) -> &'static str {
        self.lines.trim_start()
    }
}

/// What an option applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every part of its sort, and it has to be given.
    Must,
    /// Every part of its sort. Of a port: it changes while the port runs.
    Any,
    /// Ports that carry frames. It changes while the port runs.
    Frames,
    /// Switches that learn addresses, and ports on such. It changes while the port runs.
    Learning,
    /// Ports of those kinds whose row names it. A port restarts for it.
    Kind,
}

/// How the values of an option are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A whole number within these bounds.
    Number(u32, u32),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A text: how, and an example.
    Text(&'static str, &'static str),
    /// Several, joined by this mark on the command line, a list in files: how each is written, and an example.
    List(&'static str, &'static str, char),
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Number(least, most) => write!(f, "{least}..{most}"),
            Form::OneOf(words) => f.write_str(&words.join("|")),
            Form::Text(how, _) => f.write_str(how),
            Form::List(how, _, mark) => write!(f, "{how}[{mark}{how}]..."),
        }
    }
}

/// A type of values.
pub trait Value {
    /// How they are written.
    const FORM: Form;
}

impl Value for String {
    const FORM: Form = Form::Text("NAME", "x");
}

impl Value for PathBuf {
    const FORM: Form = Form::Text("PATH", "/x");
}

/// Makes a part of the configuration of the table of its options: `field: Type = "key"` where it must be given, and
/// `field: Type = "key", Scope, "default"` where it may be.
macro_rules! options {
    (
        $(#[$doc:meta])*
        $part:ident {
            must { $($(#[doc = $must_line:literal])+ $must:ident: $must_type:ty = $must_key:literal;)* }
            may { $($(#[doc = $line:literal])+ $may:ident: $type:ty = $key:literal, $scope:ident, $default:literal;)* }
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $part {
            $($(#[doc = $must_line])+ #[serde(rename = $must_key)] pub $must: $must_type,)*
            $(
                $(#[doc = $line])+
                #[serde(default, rename = $key, skip_serializing_if = "Option::is_none")]
                pub $may: Option<$type>,
            )*
        }

        impl $part {
            /// All its options.
            pub const KEYS: &'static [Key] = &[
                $(Key {
                    name: $must_key,
                    form: <$must_type as Value>::FORM,
                    scope: Scope::Must,
                    default: "",
                    lines: concat!($($must_line),+),
                },)*
                $(Key {
                    name: $key,
                    form: <$type as Value>::FORM,
                    scope: Scope::$scope,
                    default: $default,
                    lines: concat!($($line),+),
                },)*
            ];

            /// Those options that need not be given and were.
            pub fn given(&self) -> impl Iterator<Item = &'static Key> {
                let given = [$(self.$may.is_some()),*];
                let may = Self::KEYS.iter().filter(|key| key.scope != Scope::Must);
                may.zip(given).filter(|(_, given)| *given).map(|(key, _)| key)
            }

            /// A copy without options of these scopes.
            #[must_use]
            pub fn without(&self, scopes: &[Scope]) -> $part {
                $part {
                    $($must: self.$must.clone(),)*
                    $($may: self.$may.clone().filter(|_| !scopes.contains(&Scope::$scope)),)*
                }
            }

            /// What is given here, and what only `other` gives.
            #[must_use]
            pub fn or(self, other: $part) -> $part {
                $part { $($must: self.$must,)* $($may: self.$may.or(other.$may),)* }
            }
        }
    };
}

pub(super) use options;
