//! Which refusals an operator's call may answer with, for the OpenAPI document. Only the document knows these types.

use std::collections::BTreeMap;

use rules::wire::Code;
use utoipa::IntoResponses;
use utoipa::openapi::{RefOr, Response};

use crate::edge::openapi::refusals;

macro_rules! operator_refusals {
    ($($(#[$doc:meta])* $name:ident = $($code:ident)*;)*) => {$(
        $(#[$doc])*
        pub struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                refusals(&[Code::Unauthorized, $(Code::$code,)* Code::Internal, Code::Busy])
            }
        }
    )*};
}

operator_refusals! {
    /// Lists and searches.
    OfList = InvalidRequest;
    /// Looking at one thing.
    OfLook = NotFound;
    /// Looking at an order, which may be on its way to the disk.
    OfOrder = NotFound Unsure;
    /// Looking at a page of one thing.
    OfPage = NotFound InvalidRequest;
    /// Throwing a thing away.
    OfDelete = NotFound WrongState InvalidRequest;
    /// Ending a thing that has no state.
    OfLift = NotFound;
    /// Deleting a receiver of events.
    OfRemove = NotFound InvalidRequest;
    /// Actions without a body.
    OfAction = NotFound WrongState KeyReused NotYet InvalidRequest;
    /// Making something.
    OfCreate = Malformed KeyReused NotYet TooLarge UnsupportedMediaType InvalidRequest;
    /// Making something inside a sale.
    OfAdd = Malformed NotFound WrongState KeyReused NotYet TooLarge UnsupportedMediaType InvalidRequest;
    /// Changing something.
    OfChange = Malformed NotFound NotEditable TooLarge UnsupportedMediaType InvalidRequest;
    /// Changing stock.
    OfStock = Malformed NotFound StockBelowLive KeyReused NotYet TooLarge UnsupportedMediaType InvalidRequest;
    /// Returning money.
    OfRefund = Malformed NotFound NotRefundable KeyReused NotYet TooLarge UnsupportedMediaType InvalidRequest;
    /// Trying again to return money.
    OfRetry = NotFound NotRefundable KeyReused NotYet InvalidRequest;
    /// Looking at all there is.
    OfAll = ;
    /// Changing a webhook.
    OfEdit = Malformed NotFound TooLarge UnsupportedMediaType InvalidRequest;
    /// Asking for something again.
    OfReplay = Malformed NotFound KeyReused NotYet TooLarge UnsupportedMediaType InvalidRequest;
    /// Making a new secret.
    OfSecret = NotFound KeyReused NotYet InvalidRequest;
    /// Looking at the books.
    OfAudit = Malformed KeyReused NotYet TooLarge UnsupportedMediaType InvalidRequest;
    /// Putting something in its place.
    OfPut = Malformed TooLarge UnsupportedMediaType InvalidRequest;
}
