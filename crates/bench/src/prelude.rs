//! What every benchmark speaks of: times and rows, guests and their drivers, processors and their distance,
//! rounds, tables and figures.

pub use std::time::{Duration, Instant};

pub use serde::{Deserialize, Serialize};
pub use sidecore_driver::load::pin;
pub use sidecore_driver::memory::Page;
pub use sidecore_driver::{Frontend, NetDriver};

pub use crate::common::{
    apart, guest, median, merged, middle, on, page, percentile, text, this_thread, until, whole, Common,
    Output, Processors, Range, Repeat, Result,
};
pub use crate::distance::{Distance, Mode};
pub use crate::draw::{bars, chart, distinct, stack, Axis, Bars, Line};
pub use crate::modes::Modes;
pub use crate::net::Net;
pub use crate::ours::{Switch, START};
pub use crate::peers::Scratch;
pub use crate::results::Results;
pub(crate) use crate::runner::{beside_peers, by_turns, fields, figures, in_parts, named, row, Round};
