//! What can be configured and what is answered, each told once.
//!
//! [`options!`] and [`view!`] make two things of a table: a type, which is read and written as TOML, JSON or
//! words of the command line, and its [`Part`]: each key with its form, its documentation and when it is
//! there. What a kind of port knows, what a change of a key costs, what is said of a key that does not apply,
//! `--help`, man pages and the OpenAPI document come from these tables; tests hold the documentation against
//! them. An option is a row of a table, and so is a field of an answer.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A type of the configuration or of an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is called.
    pub name: &'static str,
    /// What it is: the documentation of the type, with the blanks that stand before each line.
    pub lines: &'static str,
    /// Its keys. One without a name is a part whose keys stand here, too.
    pub keys: &'static [Key],
    /// Whether other keys are refused.
    pub closed: bool,
}

/// An option, or a field of an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// How it is written.
    pub name: &'static str,
    /// What its values are.
    pub form: Form,
    /// What it applies to.
    pub scope: Scope,
    /// Keys of which one has to be given beside it; none: it stands alone.
    pub with: &'static [&'static str],
    /// What holds without it, for people.
    pub default: &'static str,
    /// What it is for: the documentation of its field, with the blanks that stand before each line.
    pub lines: &'static str,
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
    /// Ports that pay for their own work: neither those between two nodes nor those with a tenant. It changes
    /// while the port runs.
    Paid,
    /// Ports that carry frames. It changes while the port runs.
    Frames,
    /// Ports that carry frames and have queues of their own. It changes while the port runs.
    Queues,
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
    /// Several, joined by this mark on the command line, a list in files: how each is written there, and what
    /// each is.
    List(&'static str, &'static Form, char),
    /// A whole number that counts something.
    Count,
    /// True or false.
    Truth,
    /// Whatever JSON there is.
    Any,
    /// A list.
    Each(&'static Form),
    /// Values of this form, by name.
    Named(&'static Form),
    /// A value of this form, or null.
    OrNull(&'static Form),
    /// An object.
    Part(&'static Part),
}

impl Form {
    /// The keys of a part.
    pub const fn keys(self) -> &'static [Key] {
        match self {
            Form::Part(part) => part.keys,
            _ => &[],
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Number(least, most) => write!(f, "{least}..{most}"),
            Form::OneOf(words) => f.write_str(&words.join("|")),
            Form::Text(how, _) => f.write_str(how),
            Form::List(how, _, mark) => write!(f, "{how}[{mark}{how}]..."),
            Form::Count => f.write_str("N"),
            Form::Truth => f.write_str("true|false"),
            Form::Any | Form::Each(_) | Form::Named(_) | Form::OrNull(_) | Form::Part(_) => {
                f.write_str("tables")
            }
        }
    }
}

/// A type of values.
pub trait Value {
    /// How they are written.
    const FORM: Form;
}

/// Whether `value` is its type's default, as which a field that is absent is read.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The forms of types.
macro_rules! forms {
    ($($type:ty $([$($generic:tt)*])? = $form:expr;)*) => {$(
        impl $(<$($generic)*>)? $crate::util::form::Value for $type {
            const FORM: $crate::util::form::Form = $form;
        }
    )*};
}

forms! {
    bool = Form::Truth;
    u16 = Form::Count;
    u32 = Form::Count;
    u64 = Form::Count;
    usize = Form::Count;
    String = Form::Text("NAME", "x");
    PathBuf = Form::Text("PATH", "/x");
    IpAddr = Form::Text("ADDRESS", "192.0.2.1");
    serde_json::Map<String, serde_json::Value> = Form::Named(&Form::Any);
    Vec<T> [T: Value] = Form::Each(&T::FORM);
    Option<T> [T: Value] = Form::OrNull(&T::FORM);
    BTreeMap<String, T> [T: Value] = Form::Named(&T::FORM);
}

/// Reads a value from text, or from a number or truth value written without quotes.
pub fn word<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(source: D) -> Result<T, D::Error> {
    struct Word;
    impl<'de> Visitor<'de> for Word {
        type Value = String;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("one word or number")
        }
        fn visit_str<E>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }
        fn visit_i64<E>(self, number: i64) -> Result<String, E> {
            Ok(number.to_string())
        }
        fn visit_u64<E>(self, number: u64) -> Result<String, E> {
            Ok(number.to_string())
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<String, A::Error> {
            let mut words: Vec<String> = Vec::new();
            while let Some(Piece(piece)) = list.next_element()? {
                words.push(piece);
            }
            Ok(words.join("+"))
        }
    }
    struct Piece(String);
    impl<'de> Deserialize<'de> for Piece {
        fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Piece, D::Error> {
            source.deserialize_any(Word).map(Piece)
        }
    }
    source.deserialize_any(Word)?.parse().map_err(D::Error::custom)
}

/// Has these types read from one word.
macro_rules! read_as_word {
    ($($type:ty $([$($generic:tt)*])?),*) => {$(
        impl<'de $(, $($generic)*)?> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
                $crate::util::form::word(source)
            }
        }
    )*};
}

/// Has these types written as they are displayed.
macro_rules! write_as_text {
    ($($type:ty $([$($generic:tt)*])?),*) => {$(
        impl $(<$($generic)*>)? serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, sink: S) -> Result<S::Ok, S::Error> {
                sink.collect_str(self)
            }
        }
    )*};
}

/// Has these types read from one word and written as they are displayed, which is of this form.
macro_rules! worded {
    ($($type:ty $([$($generic:tt)*])? = $form:expr;)*) => {$(
        $crate::util::form::forms! { $type $([$($generic)*])? = $form; }
        $crate::util::form::read_as_word!($type $([$($generic)*])?);
        $crate::util::form::write_as_text!($type $([$($generic)*])?);
    )*};
}

/// Makes a part of the configuration of the table of its options: `field: Type = "key"` where it must be
/// given, and `field: Type = "key", Scope, "default"` where it may be.
macro_rules! options {
    (
        $(#[doc = $about:literal])+
        $part:ident {
            must { $($(#[doc = $must_line:literal])+ $must:ident: $must_type:ty = $must_key:literal;)* }
            may { $($(#[doc = $line:literal])+ $may:ident: $type:ty = $key:literal, $scope:ident
                $(with $($with:literal)+)?, $default:literal;)* }
        }
    ) => {
        $crate::util::form::view! {
            $(#[doc = $about])+
            #[derive(Default)]
            #[serde(deny_unknown_fields)]
            $part {
                $($(#[doc = $must_line])+ $must as $must_key: $must_type,)*
                $($(#[doc = $line])+ $may as $key ?: $type | $scope [$($($with)+)?] $default,)*
            }
        }

        impl $part {
            /// All its options.
            pub const KEYS: &'static [Key] = <$part as $crate::util::form::Value>::FORM.keys();

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

/// Makes each of these types, all fields of which are public, with [`Value::FORM`]. A field `name?: Type` is
/// an option, absent while there is nothing to tell; `name*: Type` is absent while it is that type's default,
/// as which it is read then. `name as "key"` is called otherwise in JSON, the keys of `..name` stand beside
/// those of the type itself, and behind `=` stand the values that a text has.
#[macro_export]
macro_rules! view {
    // The fields one by one; those of the first brackets are done, and of the second their keys.
    (@ $done:tt $keys:tt $(#[doc = $line:literal])+ ..$name:ident: $type:ty, $($rest:tt)*) => {
        $crate::util::form::view! { @@ $done $keys [$($line)+] [flatten] [Must] $name [""] [$type] [$type] [] $($rest)* }
    };
    (@ $done:tt $keys:tt $(#[doc = $line:literal])+ $name:ident $(as $key:literal)? ?: $type:ty
        $(= [$($word:literal),+])? $(| $scope:ident [$($with:literal)*] $default:literal)?, $($rest:tt)*) => {
        $crate::util::form::view! { @@ $done $keys [$($line)+] [default, skip_serializing_if = "Option::is_none" $(, rename = $key)?]
            [$($scope [$($with)*] $default)? Any] $name [$($key)?] [Option<$type>] [$type] [$($($word)+)?] $($rest)* }
    };
    (@ $done:tt $keys:tt $(#[doc = $line:literal])+ $name:ident $(as $key:literal)? *: $type:ty, $($rest:tt)*) => {
        $crate::util::form::view! { @@ $done $keys [$($line)+]
            [default, skip_serializing_if = "sidecore_engine::util::form::is_default" $(, rename = $key)?]
            [Any] $name [$($key)?] [$type] [$type] [] $($rest)* }
    };
    (@ $done:tt $keys:tt $(#[doc = $line:literal])+ $(#[serde($how:ident)])? $name:ident $(as $key:literal)?: $type:ty
        $(= [$($word:literal),+])?, $($rest:tt)*) => {
        $crate::util::form::view! { @@ $done $keys [$($line)+] [$($how,)? $(rename = $key)?]
            [Must] $name [$($key)?] [$type] [$type] [$($($word)+)?] $($rest)* }
    };
    (@@ [$($done:tt)*] [$($keys:tt)*] [$($line:literal)+] [$($how:tt)*]
        [$scope:ident $([$($with:literal)*] $default:literal Any)?]
        $name:ident [$($key:literal)?] [$field:ty] [$type:ty] [$($word:literal)*] $($rest:tt)*) => {
        $crate::util::form::view! { @
            [$($done)* $(#[doc = $line])+ #[serde($($how)*)] pub $name: $field,]
            [$($keys)* $crate::util::form::Key {
                name: [$($key,)? stringify!($name)][0],
                form: $crate::util::form::view!(form $type, $($word)*),
                scope: $crate::util::form::Scope::$scope,
                with: &[$($($with),*)?],
                default: [$($default,)? ""][0],
                lines: concat!($($line),+),
            },]
            $($rest)*
        }
    };
    (form $type:ty,) => { <$type as $crate::util::form::Value>::FORM };
    (form $type:ty, $($word:literal)+) => { $crate::util::form::Form::OneOf(&[$($word),+]) };
    (@ [[$($about:literal)+] [$($also:ident)*] [$($closed:ident)?] $view:ident $($fields:tt)*] [$($keys:tt)*]) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize $(, $also)*)]
        $(#[serde($closed)])?
        pub struct $view { $($fields)* }

        impl $crate::util::form::Value for $view {
            const FORM: $crate::util::form::Form = $crate::util::form::Form::Part(&$crate::util::form::Part {
                name: stringify!($view),
                lines: concat!($($about),+),
                keys: &[$($keys)*],
                closed: !stringify!($($closed)?).is_empty(),
            });
        }
    };
    ($($(#[doc = $about:literal])+ $(#[derive($($also:ident),+)])? $(#[serde($closed:ident)])?
        $view:ident { $($fields:tt)* })+) => {
        $($crate::util::form::view! { @ [[$($about)+] [$($($also)+)?] [$($closed)?] $view] [] $($fields)* })+
    };
}

pub use view;
pub(crate) use {forms, options, read_as_word, worded, write_as_text};
