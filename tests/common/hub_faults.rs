//! What can go wrong at a hub.

use std::time::Duration;

/// What goes wrong.
#[derive(Clone, Default)]
pub struct Faults {
    /// Connections end after so many bytes of a file ...
    pub cut_after: Option<usize>,
    /// ... so many times.
    pub cuts: usize,
    /// Nothing more comes after so many bytes of a file.
    pub stall_after: Option<usize>,
    pub ignore_range: bool,
    /// A part of a file has another `ETag` than the whole.
    pub other_part: bool,
    /// This status, so many times, for files or for the API.
    pub file_status: Option<(u16, usize)>,
    pub api_status: Option<(u16, usize)>,
    /// This body with 200 instead of a file.
    pub instead: Option<&'static str>,
    /// Added to a file's `Content-Length`.
    pub longer: usize,
    /// No `Content-Length`, and no end.
    pub endless: bool,
    /// The middle byte is another one.
    pub corrupt: bool,
    /// Files are listed as git has them, not as LFS has.
    pub outside_lfs: bool,
    /// Files are at this address plus their target.
    pub redirect: Option<String>,
    /// Every file redirects to itself.
    pub endless_redirect: bool,
    /// A file of this name is listed too.
    pub extra_name: Option<&'static str>,
    /// Files are found by the names that `%XX` in a target stands for.
    pub encoded_names: bool,
    /// The list has a file a page, and the last page names itself as the next.
    pub endless_list: bool,
    /// The next page is named without its host and path.
    pub relative_pages: bool,
    /// This instead of the list.
    pub list: Option<&'static str>,
    /// A wait before each piece of a file.
    pub pace: Duration,
    /// Others get 401.
    pub token: Option<&'static str>,
}
