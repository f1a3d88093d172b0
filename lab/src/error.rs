//! One error for the whole lab: a sentence for a person, with the logs that explain it.

use std::fmt;

/// What went wrong, where, and what can be done. `Debug` prints the same text as `Display`, so that a test
/// that returns `Result<(), Error>` shows a readable report.
pub struct Error(String);

/// `Result` with the lab's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Says what was being done when a lower layer failed.
pub(crate) trait Context<T> {
    /// Puts `what` in front of the error's own words.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error(format!("{}: {e}", what())))
    }
}
