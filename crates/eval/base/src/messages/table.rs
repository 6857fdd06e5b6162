//! The table of messages: key, English, Japanese. Each topic has its lines in a file of its own.

macro_rules! messages {
    (: $($key:ident: $english:literal, $japanese:literal;)*) => {
        /// What can be said.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Message { $(#[doc = concat!("`", $english, "`")] $key,)* }

        impl Message {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$key),*];

            /// By language.
            pub(super) fn texts(self) -> [&'static str; 2] {
                match self { $(Self::$key => [$english, $japanese],)* }
            }
        }
    };
}

// Each topic adds its lines and hands all to the next; the last makes the table of them.
loads! { metrics report advice pages charts messages:
    // Languages, in themselves.
    LanguageName: "English", "日本語";
}
