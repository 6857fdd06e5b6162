//! The presentation of results: reports and overviews with their charts, advice, and the server of pages.

pub mod advice;
mod error;
pub mod report;
pub mod serve;

pub use error::Error;
