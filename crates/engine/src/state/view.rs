//! How the types of the JSON are written: what `show` shows, and what requests answer.

/// Makes each of these types, all fields of which are public. A field `name?: Type` is absent while there is nothing to tell.
macro_rules! view {
    // The fields one by one; those of the first brackets are done.
    (@ [$($done:tt)*] $(#[$about:meta])* $name:ident?: $type:ty, $($rest:tt)*) => {
        view! { @ [
            $($done)* $(#[$about])*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub $name: Option<$type>,
        ] $($rest)* }
    };
    (@ [$($done:tt)*] $(#[$about:meta])* $name:ident: $type:ty, $($rest:tt)*) => {
        view! { @ [$($done)* $(#[$about])* pub $name: $type,] $($rest)* }
    };
    (@ [[$($head:tt)*] $($fields:tt)*]) => {
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        $($head)* { $($fields)* }
    };
    ($($(#[$about:meta])* $view:ident { $($fields:tt)* })+) => {
        $(view! { @ [[$(#[$about])* pub struct $view]] $($fields)* })+
    };
}

pub(super) use view;
